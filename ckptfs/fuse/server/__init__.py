"""The compiled server: README.md beside this file says what it is for, and what it may assume."""

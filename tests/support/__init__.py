"""What the tests share. Nothing here imports ckptfs: it is driven as a program, from outside."""

"""The command `tespec`: one module per verb."""

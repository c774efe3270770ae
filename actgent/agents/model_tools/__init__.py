"""What the models of agents get besides the tools of a program: schedules, and memories that last."""

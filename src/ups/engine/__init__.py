"""How anything is learnt: one loop, one optimizer, one checkpoint format; knows no physics, no model, no stage."""

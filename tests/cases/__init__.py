"""Every case of `cases.md`: what people reported, and the good behaviour that they expect."""

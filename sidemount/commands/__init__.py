"""The commands of `sidemount`: each parses nothing but its own arguments and prints. Decisions are made elsewhere."""

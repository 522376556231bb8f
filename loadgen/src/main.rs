//! `nodeward-loadgen`: the load generator's command line.

fn main() {}

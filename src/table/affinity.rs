//! Session affinity.

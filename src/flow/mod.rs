//! Sans-io cores: what to do with a datagram, decided without sockets, clocks or randomness of their own.
//!
//! A core gets inputs with the time in them and answers through a small trait (its shell). It knows the table and health
//! only through that trait. Everything is bounded and allocated when the core is made.

pub mod ages;
pub mod chunks;
pub mod dns;
pub mod oneway;
pub mod stream;
pub mod wheel;

/// Milliseconds on the worker's monotonic clock.
pub type Millis = u64;

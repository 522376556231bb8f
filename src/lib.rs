//! Nodeward: a node-local L4 dataplane for Kubernetes Services.
//!
//! The crate is both the agent and a library. `model`, `store`, `topology`, `view` and `table` build without the
//! `dataplane` feature: they are the node-local view of Services for other programs.
//!
//! Arrows between rooms: `model` ← `topology` ← `view` ← `table`; `flow` knows `table` and `health` only through small
//! traits or plain ids; `engine` and `net` know nothing of Services; only `worker` knows both sides.

#[cfg(feature = "dataplane")]
pub mod admin;
#[cfg(feature = "dataplane")]
pub mod cli;
pub mod config;
#[cfg(feature = "dataplane")]
pub mod control;
#[cfg(feature = "dataplane")]
pub mod engine;
#[cfg(feature = "dataplane")]
pub mod flow;
#[cfg(feature = "dataplane")]
pub mod health;
pub mod model;
#[cfg(feature = "dataplane")]
pub mod net;
#[cfg(feature = "dataplane")]
pub mod redirect;
pub mod source;
pub mod store;
pub mod table;
pub mod telemetry;
pub mod topology;
pub mod view;
#[cfg(feature = "dataplane")]
pub mod worker;

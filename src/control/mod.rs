//! The control thread: source → store → table → workers and redirection, the lease, the admin server, the end.
//!
//! One tokio current-thread runtime. It never touches a client's packet. Everything slow (nft, files, questions from
//! people) happens here or on threads of its own, so that a worker waits for nothing.

mod agent;
mod lease;
mod redirection;
mod report;
mod run;
mod settings;
mod start;
mod vips;

pub use run::run;
pub use start::RunError;

//! Sources: turn the outside (files, the API) into model changes.
//!
//! A source rejects bad input whole, keeps the last good state and says what is wrong. It never ranks, and never knows
//! which node it runs on.

pub mod file;
pub mod manifest;

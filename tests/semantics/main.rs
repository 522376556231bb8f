//! Kubernetes semantics: joins, `strict` against kube-proxy's vectors and a naive model, `ranked`, settings, `explain`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod commands;
#[allow(dead_code)]
#[path = "../../examples/custom_ranker.rs"]
mod custom_ranker;
mod golden;
mod join;
mod kpng;
mod naive;
mod ranked;
mod rows_early;
mod rows_late;
mod rows_support;
mod settings;
mod strict;
mod support;
mod vectors;

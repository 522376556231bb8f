//! Kubernetes semantics: joins, `strict` against kube-proxy's vectors and a naive model, `ranked`, settings, `explain`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod join;
mod naive;
mod ranked;
mod rows;
mod settings;
mod strict;
mod support;

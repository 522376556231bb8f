//! The HTTP server: routes, and the listeners they answer on.

use super::limit::Limited;
use super::{AdminError, AdminSocket, AgentView, Query, QueryError, Question};
use crate::telemetry::metrics;
use axum::Router;
use axum::extract::State;
use axum::extract::rejection::QueryRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

type Agent = Arc<dyn AgentView>;

/// Listens on `admin.listen`.
///
/// # Errors
/// [`AdminError::Listen`] names the key and what to do.
pub fn bind_tcp(address: SocketAddr) -> Result<std::net::TcpListener, AdminError> {
    let bound = std::net::TcpListener::bind(address).and_then(|l| l.set_nonblocking(true).map(|()| l));
    bound.map_err(|error| AdminError::Listen {
        address,
        hint: match error.kind() {
            io::ErrorKind::AddrInUse => "; another process has the port: choose another one, or `off`",
            io::ErrorKind::AddrNotAvailable => "; this node does not have the address",
            _ => "",
        },
        error,
    })
}

/// Serves until `stop` is done; must run on a tokio runtime. The Unix socket answers everything; TCP answers health and
/// metrics only, because everybody who reaches the node can ask there.
///
/// # Errors
/// Where a listener cannot be handed to the runtime. Errors of single connections end those alone.
pub async fn serve(
    agent: Agent,
    unix: &AdminSocket,
    tcp: Option<std::net::TcpListener>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), AdminError> {
    let setup = |error| AdminError::Path {
        path: unix.path().to_owned(),
        action: "serve",
        error,
    };
    let listener = tokio::net::UnixListener::from_std(unix.listener()?).map_err(setup)?;
    let (stopped, watch) = tokio::sync::watch::channel(false);
    let until = |mut watch: tokio::sync::watch::Receiver<bool>| async move {
        // The sender going away means stop as well.
        let _ = watch.wait_for(|stop| *stop).await;
    };
    let all = axum::serve(
        Limited::new(listener),
        public(agent.clone()).merge(private(agent.clone())),
    )
    .with_graceful_shutdown(until(watch.clone()));
    let over_tcp = match tcp {
        None => None,
        Some(listener) => {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(setup)?;
            let server = axum::serve(Limited::new(listener), public(agent));
            Some(server.with_graceful_shutdown(until(watch)))
        }
    };
    tokio::spawn(async move {
        stop.await;
        let _ = stopped.send(true);
    });
    // Neither server ends before `stop`, and neither returns an error.
    match over_tcp {
        None => all.await.map_err(setup),
        Some(tcp) => {
            let (a, b) = tokio::join!(all.into_future(), tcp.into_future());
            a.and(b).map_err(setup)
        }
    }
}

/// Health and metrics.
fn public(agent: Agent) -> Router {
    Router::new()
        .route("/livez", get(async |State(agent): State<Agent>| verdict(agent.live())))
        .route(
            "/readyz",
            get(async |State(agent): State<Agent>| verdict(agent.ready())),
        )
        .route(
            "/healthz",
            get(async |State(agent): State<Agent>| verdict(agent.live().and_then(|()| agent.ready()))),
        )
        .route("/metrics", get(exposition))
        .with_state(agent)
}

/// Everything about the cluster's Services.
fn private(agent: Agent) -> Router {
    Router::new()
        .route(
            "/v1/status",
            get(async |State(agent): State<Agent>| axum::Json(agent.status())),
        )
        .route("/v1/explain", get(async |s, q| question(s, q, Question::Explain).await))
        .route(
            "/v1/services",
            get(async |s, q| question(s, q, Question::Services).await),
        )
        .route(
            "/v1/endpoints",
            get(async |s, q| question(s, q, Question::Endpoints).await),
        )
        .route("/v1/dump", get(async |s, q| question(s, q, Question::Dump).await))
        .with_state(agent)
}

fn verdict(result: Result<(), String>) -> Response {
    match result {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn exposition(State(agent): State<Agent>) -> Response {
    let text = tokio::task::spawn_blocking(move || {
        metrics::encode(
            agent.registry(),
            agent.control_metrics(),
            &agent.status(),
            agent.ready().is_ok(),
        )
    });
    match text.await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written\n").into_response(),
    }
}

async fn question(
    State(agent): State<Agent>,
    query: Result<axum::extract::Query<Query>, QueryRejection>,
    question: Question,
) -> Response {
    let axum::extract::Query(query) = match query {
        Ok(query) => query,
        Err(e) => return (StatusCode::BAD_REQUEST, e.body_text()).into_response(),
    };
    // A dump of a large cluster takes longer than the control thread may be away.
    let answer = tokio::task::spawn_blocking(move || {
        let value = agent.query(question, &query)?;
        serde_json::to_vec(&value).map_err(|e| QueryError::Unavailable(e.to_string()))
    });
    match answer.await {
        Ok(Ok(json)) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Ok(Err(e)) => (code(&e), e.to_string()).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the question could not be answered").into_response(),
    }
}

fn code(error: &QueryError) -> StatusCode {
    match error {
        QueryError::Bad(_) => StatusCode::BAD_REQUEST,
        QueryError::NotFound(_) => StatusCode::NOT_FOUND,
        QueryError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

//! Asking a running agent over its Unix socket.

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An answer is awaited at most this long: a dump of a large cluster takes seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Largest answer accepted, in bytes.
const MAX_ANSWER: usize = 1 << 30;

/// An agent's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub code: u16,
    /// Body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as text, for messages.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim_end().to_owned()
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no agent answers at {path}: {error}{hint}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        error: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The conversation broke.
    #[error("the agent at {path} gave no answer: {reason}")]
    Broken {
        /// The socket.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Asks the agent behind `socket` for `path` (with its query). Blocks, at most 30 s; not for use inside a runtime.
///
/// # Errors
/// [`ClientError`]. An HTTP error status is an answer.
pub fn get(socket: &Path, path: &str) -> Result<Answer, ClientError> {
    let broken = |reason: String| ClientError::Broken {
        path: socket.to_owned(),
        reason,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| broken(e.to_string()))?;
    runtime.block_on(async {
        match tokio::time::timeout(TIMEOUT, ask(socket, path)).await {
            Ok(answer) => answer,
            Err(_) => Err(broken(format!("none within {} s", TIMEOUT.as_secs()))),
        }
    })
}

async fn ask(socket: &Path, path: &str) -> Result<Answer, ClientError> {
    let stream = tokio::net::UnixStream::connect(socket)
        .await
        .map_err(|error| ClientError::Connect {
            path: socket.to_owned(),
            hint: match error.kind() {
                io::ErrorKind::NotFound => "; is `nodeward run` running, and is its admin.runDir this folder?",
                io::ErrorKind::ConnectionRefused => "; the agent has ended",
                io::ErrorKind::PermissionDenied => "; run as root or as the socket's group",
                _ => "",
            },
            error,
        })?;
    let broken = |e: &dyn std::fmt::Display| ClientError::Broken {
        path: socket.to_owned(),
        reason: e.to_string(),
    };
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io)
        .await
        .map_err(|e| broken(&e))?;
    // Ends with the conversation; its error shows up in the answer.
    tokio::spawn(connection);
    let request = hyper::Request::get(path)
        .header(hyper::header::HOST, "nodeward")
        .body(Empty::<Bytes>::new())
        .map_err(|e| broken(&e))?;
    let response = sender.send_request(request).await.map_err(|e| broken(&e))?;
    let code = response.status().as_u16();
    let body = Limited::new(response.into_body(), MAX_ANSWER)
        .collect()
        .await
        .map_err(|e| broken(&e))?;
    Ok(Answer {
        code,
        body: body.to_bytes().to_vec(),
    })
}

//! Running nft: once, for questions, and as the long-lived interactive child whose netlink socket owns our table.
//!
//! An interactive nft gives no acknowledgement. So each transaction is followed by a question whose answer tells that it
//! was carried out and what the kernel holds now. Standard error goes into the same pipe as the answers, therefore an error
//! stands before the answer to the next question.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

/// Longest wait for an answer of nft. Ordinary ones take about a millisecond; thousands of elements some hundred.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Longest error text kept.
const ERROR_LIMIT: usize = 600;

/// The interactive nft.
#[derive(Debug)]
pub(super) struct InteractiveNft {
    child: Child,
    stdin: ChildStdin,
    answers: BufReader<pipe::Receiver>,
}

/// What came of a transaction.
#[derive(Debug)]
pub(super) struct Outcome {
    /// nft's complaints, one per line; empty if it took everything.
    pub errors: String,
    /// The answers to the questions, in order; empty text where nft refused the question.
    pub answers: Vec<String>,
}

impl InteractiveNft {
    /// Starts `command`, which has to become an interactive nft with JSON answers.
    pub(super) fn start(mut command: std::process::Command) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let errors = writer.try_clone()?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::from(writer))
            .stderr(Stdio::from(errors));
        command
            .env("LC_ALL", "C")
            .env("HOME", "/nonexistent")
            .env("TERM", "dumb");
        let mut child = Command::from(command).kill_on_drop(true).spawn()?;
        let stdin = child.stdin.take().ok_or_else(|| io::Error::other("no pipe to nft"))?;
        let answers = BufReader::new(pipe::Receiver::from_owned_fd(reader.into())?);
        Ok(Self { child, stdin, answers })
    }

    /// Runs one line as one transaction and asks `questions` afterwards (at least one, or the outcome stays unknown).
    ///
    /// # Errors
    /// nft is gone or silent; its table is gone with it.
    pub(super) async fn run(&mut self, line: &str, questions: &[String]) -> io::Result<Outcome> {
        let mut text = String::with_capacity(line.len() + 256);
        if !line.is_empty() {
            text.push_str(line);
            text.push('\n');
        }
        for question in questions {
            text.push_str(question);
            text.push('\n');
        }
        let work = async {
            let mut outcome = Outcome {
                errors: String::new(),
                answers: Vec::new(),
            };
            // Written and read at the same time: a long line must not wait for a full answer pipe.
            let (written, read) = tokio::join!(
                self.stdin.write_all(text.as_bytes()),
                read_answers(&mut self.answers, questions, &mut outcome)
            );
            written.and(read).map(|()| outcome)
        };
        match timeout(ANSWER_LIMIT, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(io::Error::other("nft gave no answer in time")),
        }
    }

    /// Waits for nft to end.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Ends nft; its table is gone when this returns.
    pub(super) async fn stop(mut self) -> io::Result<()> {
        self.child.kill().await
    }
}

async fn read_answers(
    answers: &mut BufReader<pipe::Receiver>,
    questions: &[String],
    outcome: &mut Outcome,
) -> io::Result<()> {
    let mut line = Vec::new();
    for question in questions {
        loop {
            line.clear();
            if answers.read_until(b'\n', &mut line).await? == 0 {
                let errors = outcome.errors.trim();
                return Err(io::Error::other(format!("nft ended unexpectedly: {errors}")));
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim();
            if text.starts_with("{\"nftables\"") {
                outcome.answers.push(text.to_owned());
                break;
            }
            if text == question {
                // nft repeats the line it refuses.
                outcome.answers.push(String::new());
                break;
            }
            let pointer = text.chars().all(|c| matches!(c, '^' | '~' | '-' | ' '));
            if !pointer && outcome.errors.len() < ERROR_LIMIT {
                let cut: String = text.chars().take(ERROR_LIMIT / 2).collect();
                outcome.errors.push_str(&cut);
                outcome.errors.push('\n');
            }
        }
    }
    Ok(())
}

/// What a single run of nft printed.
#[derive(Debug)]
pub(super) struct Run {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

/// Runs nft once with arguments and, if given, a rule set on standard input.
///
/// # Errors
/// nft cannot be started or takes longer than the limit.
pub(super) async fn run_once(nft: &str, arguments: &[&str], input: Option<&str>) -> io::Result<Run> {
    let mut command = Command::new(nft);
    command
        .args(arguments)
        .env("LC_ALL", "C")
        .env("HOME", "/nonexistent")
        .kill_on_drop(true);
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        // Rule sets are far below the pipe's 64 KiB, so this never waits for nft to print something.
        stdin.write_all(text.as_bytes()).await?;
    }
    let output = timeout(ANSWER_LIMIT, child.wait_with_output()).await;
    let output = output.map_err(|_| io::Error::other("nft gave no answer in time"))??;
    Ok(Run {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// The first complaint in what nft printed.
pub(super) fn first_error(text: &str) -> String {
    let line = text
        .lines()
        .find(|l| l.contains("Error:"))
        .or_else(|| text.lines().next())
        .unwrap_or("no message");
    line.trim().chars().take(ERROR_LIMIT / 2).collect()
}

/// A table of ours as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignTable {
    /// Instance id, without the prefix.
    pub instance: String,
    /// Whether a process owns it, that is: whether its instance lives.
    pub owned: bool,
    /// Its comment: marks, routing table and rules of the instance.
    pub comment: String,
}

/// All `nodeward-*` tables in this network namespace.
///
/// # Errors
/// nft cannot be run, in words.
pub(super) async fn our_tables(nft: &str) -> Result<Vec<ForeignTable>, String> {
    // Text, not JSON: nft 1.0.6 prints arbitrary memory for the owner flag in JSON.
    let run = run_once(nft, &["list", "tables", "inet"], None)
        .await
        .map_err(|e| format!("cannot run {nft}: {e}"))?;
    if !run.success {
        return Err(first_error(&run.stderr));
    }
    let prefix = format!("table inet {}", super::config::TABLE_PREFIX);
    let mut tables = Vec::new();
    for instance in run.stdout.lines().filter_map(|l| l.trim().strip_prefix(&prefix)) {
        let name = format!("{}{instance}", super::config::TABLE_PREFIX);
        let run = run_once(nft, &["-t", "list", "table", "inet", &name], None).await;
        let run = run.map_err(|e| format!("cannot run {nft}: {e}"))?;
        if !run.success {
            continue; // It went away between the two questions.
        }
        let head: Vec<&str> = run.stdout.lines().take(4).map(str::trim).collect();
        let comment = head
            .iter()
            .find_map(|l| l.strip_prefix("comment \""))
            .unwrap_or_default();
        tables.push(ForeignTable {
            instance: instance.to_owned(),
            owned: head.iter().any(|l| l.starts_with("flags") && l.contains("owner")),
            comment: comment.trim_end_matches('"').to_owned(),
        });
    }
    Ok(tables)
}

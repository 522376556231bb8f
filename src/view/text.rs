//! Explanations and lists as text for people: aligned columns, colour where it is wanted. Pure: strings in, string out.

use super::{EndpointRow, ExplainedEndpoint, Explanation, ServiceRow};
use crate::topology::Verdict;
use std::fmt::Write;

/// How a line stands out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tone {
    Plain,
    Heading,
    Good,
    Bad,
    Faint,
}

impl Tone {
    fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            Self::Heading => "1",
            Self::Good => "32",
            Self::Bad => "31",
            Self::Faint => "2",
            Self::Plain => return text.to_owned(),
        };
        if colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Rows of cells padded to the widest of their column; the last column is not padded.
#[derive(Default)]
struct Columns {
    rows: Vec<(Tone, Vec<String>)>,
}

impl Columns {
    fn push(&mut self, tone: Tone, cells: &[&str]) {
        self.rows.push((tone, cells.iter().map(|c| (*c).to_owned()).collect()));
    }

    fn write(&self, out: &mut String, indent: &str, colour: bool) {
        let columns = self.rows.iter().map(|(_, cells)| cells.len()).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|(_, cells)| cells.get(column));
            cells.map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (tone, cells) in &self.rows {
            let mut line = indent.to_owned();
            for (cell, width) in cells.iter().zip(&widths) {
                let _ = write!(line, "{cell:<width$}  ");
            }
            out.push_str(&tone.paint(line.trim_end(), colour));
            out.push('\n');
        }
    }
}

fn yes(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

fn or_dash(text: Option<&str>) -> &str {
    text.unwrap_or("-")
}

fn conditions(ready: bool, serving: bool, terminating: bool) -> String {
    let words = [(ready, "ready"), (serving, "serving"), (terminating, "terminating")];
    let words: Vec<&str> = words.into_iter().filter(|(is, _)| *is).map(|(_, w)| w).collect();
    if words.is_empty() {
        "none".to_owned()
    } else {
        words.join(",")
    }
}

fn verdict_tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Forward => Tone::Good,
        Verdict::Reject | Verdict::Drop => Tone::Bad,
    }
}

/// Explanations, one block each, with an empty line between them.
pub fn explanations(explanations: &[Explanation], colour: bool) -> String {
    let blocks: Vec<String> = explanations.iter().map(|e| explanation(e, colour)).collect();
    blocks.join("\n")
}

fn explanation(e: &Explanation, colour: bool) -> String {
    let title = format!("{}:{}/{} {} {}", e.service, e.port, e.protocol, e.family, e.vip);
    let mut out = Tone::Heading.paint(&title, colour);
    out.push('\n');
    let mut facts = Columns::default();
    let seen_from = match &e.zone {
        Some(zone) => format!("{}, zone {zone}", e.node),
        None => format!("{}, zone unknown", e.node),
    };
    facts.push(Tone::Plain, &["seen from", &seen_from]);
    facts.push(Tone::Plain, &["policy", &format!("{} ({})", e.policy, e.policy_origin)]);
    let interpretation = format!("{} ({})", e.interpretation, e.interpretation_origin);
    facts.push(Tone::Plain, &["interpretation", &interpretation]);
    facts.push(
        Tone::Plain,
        &["profile", &format!("{} ({})", e.profile.value, e.profile.origin)],
    );
    let source = format!("{} ({})", e.source_address.value, e.source_address.origin);
    facts.push(Tone::Plain, &["source address", &source]);
    if let (Some(mode), Some(reason)) = (e.hint_mode, &e.hint_reason) {
        facts.push(Tone::Plain, &["hint mode", &format!("{}: {reason}", mode.as_str())]);
    }
    facts.push(verdict_tone(e.verdict), &["verdict", &verdict(e)]);
    if !e.tiers.is_empty() {
        facts.push(Tone::Plain, &["order", &order(e)]);
    }
    if let Some(x) = &e.external {
        let (outsiders, insiders) = (x.outsiders.as_str(), x.insiders.as_str());
        let text = format!(
            "{} ({}): outsiders {outsiders}, pods and node {insiders}",
            x.policy, x.status
        );
        facts.push(Tone::Plain, &["external", &text]);
    }
    for notice in &e.notices {
        facts.push(Tone::Bad, &["notice", notice]);
    }
    facts.write(&mut out, "  ", colour);
    if e.endpoints.is_empty() {
        out.push_str("  no endpoints\n");
        return out;
    }
    let hinted = e
        .endpoints
        .iter()
        .any(|e| !e.hint_nodes.is_empty() || !e.hint_zones.is_empty());
    let mut table = Columns::default();
    let head = ["", "ENDPOINT", "NODE", "ZONE", "CONDITIONS", "RANK"];
    let tail: &[&str] = if hinted { &["HINTS", "REASON"] } else { &["REASON"] };
    table.push(Tone::Heading, &[&head, tail].concat());
    for endpoint in &e.endpoints {
        explained_row(&mut table, endpoint, hinted);
    }
    table.write(&mut out, "  ", colour);
    out
}

fn explained_row(table: &mut Columns, e: &ExplainedEndpoint, hinted: bool) {
    let (mark, tone) = match (e.chosen, e.tier) {
        (true, _) => ("*", Tone::Good),
        (false, Some(_)) => ("", Tone::Plain),
        (false, None) => ("", Tone::Faint),
    };
    let (node, zone) = (or_dash(e.node.as_deref()), or_dash(e.zone.as_deref()));
    let conditions = conditions(e.ready, e.serving, e.terminating);
    if hinted {
        let hints = hints(e);
        table.push(
            tone,
            &[mark, &e.address, node, zone, &conditions, &e.rank, &hints, &e.reason],
        );
    } else {
        table.push(tone, &[mark, &e.address, node, zone, &conditions, &e.rank, &e.reason]);
    }
}

fn hints(e: &ExplainedEndpoint) -> String {
    let mut parts = Vec::new();
    if !e.hint_nodes.is_empty() {
        parts.push(format!("node={}", e.hint_nodes.join(",")));
    }
    if !e.hint_zones.is_empty() {
        parts.push(format!("zone={}", e.hint_zones.join(",")));
    }
    if parts.is_empty() {
        "-".to_owned()
    } else {
        parts.join(" ")
    }
}

fn verdict(e: &Explanation) -> String {
    match (e.verdict, &e.chosen_rank) {
        (Verdict::Forward, Some(rank)) => {
            format!("forward to {} of {}, rank {rank}", e.chosen.len(), e.endpoints.len())
        }
        (Verdict::Forward, None) => "forward".to_owned(),
        (Verdict::Reject, _) => "reject: no endpoint anywhere could serve".to_owned(),
        (Verdict::Drop, _) => "drop: endpoints exist, none on this node".to_owned(),
    }
}

fn order(e: &Explanation) -> String {
    let step = |t: &super::ExplainedTier| {
        let mark = if t.terminating { " terminating" } else { "" };
        format!("{}{mark} ({})", t.rank, t.endpoints)
    };
    e.tiers.iter().map(step).collect::<Vec<_>>().join(", then ")
}

/// Service ports as a table.
pub fn services(rows: &[ServiceRow], colour: bool) -> String {
    let mut table = Columns::default();
    table.push(
        Tone::Heading,
        &[
            "SERVICE",
            "PORT",
            "FAMILY",
            "VIP",
            "PROFILE",
            "POLICY",
            "INTERPRETATION",
            "RANK",
            "READY",
            "SERVING",
            "TERMINATING",
            "TOTAL",
            "STATUS",
        ],
    );
    for r in rows {
        let status = match r.notices {
            0 => r.status.clone(),
            1 => format!("{} (1 notice)", r.status),
            n => format!("{} ({n} notices)", r.status),
        };
        let counts = [r.ready, r.serving, r.terminating, r.total].map(|n| n.to_string());
        table.push(
            if r.verdict == Verdict::Forward {
                Tone::Plain
            } else {
                Tone::Bad
            },
            &[
                &r.service,
                &format!("{}/{}", r.port, r.protocol),
                &r.family,
                &r.vip,
                &r.profile,
                &format!("{} ({})", r.policy.value, r.policy.origin),
                &r.interpretation,
                or_dash(r.rank.as_deref()),
                &counts[0],
                &counts[1],
                &counts[2],
                &counts[3],
                &status,
            ],
        );
    }
    let mut out = String::new();
    table.write(&mut out, "", colour);
    out
}

/// Endpoints as a table.
pub fn endpoints(rows: &[EndpointRow], colour: bool) -> String {
    let mut table = Columns::default();
    table.push(
        Tone::Heading,
        &[
            "SERVICE",
            "PORT",
            "ENDPOINT",
            "NODE",
            "ZONE",
            "CONDITIONS",
            "RANK",
            "CHOSEN",
        ],
    );
    for r in rows {
        table.push(
            if r.chosen { Tone::Good } else { Tone::Plain },
            &[
                &r.service,
                &format!("{}/{}", r.port, r.protocol),
                &r.address,
                or_dash(r.node.as_deref()),
                or_dash(r.zone.as_deref()),
                &conditions(r.ready, r.serving, r.terminating),
                &r.rank,
                yes(r.chosen),
            ],
        );
    }
    let mut out = String::new();
    table.write(&mut out, "", colour);
    out
}

//! The constant routing rules and the one local route per family, over rtnetlink.
//!
//! ```text
//! ip rule add pref B   fwmark P/MASK iif lo goto B+2   # reverse-path look-ups see the main table
//! ip rule add pref B+1 fwmark P/MASK lookup T
//! ip rule add pref B+2 fwmark H/MASK lookup T
//! ip route add local default dev lo table T
//! ```
//! Without marked packets they do nothing, so they may outlive the table and be shared by two instances. All carry
//! [`PROTOCOL`], by which `cleanup` knows them. Nothing here is per service.

use super::plan::{Item, PROTOCOL, Plan, Rule, rules};
use crate::model::IpFamily;
use futures_util::TryStreamExt;
use nix::net::if_::if_nametoindex;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType};
use rtnetlink::packet_route::rule::RuleMessage;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, TokioSocket, protocols::NETLINK_ROUTE};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

const EEXIST: i32 = -(nix::errno::Errno::EEXIST as i32);
const ENOENT: i32 = -(nix::errno::Errno::ENOENT as i32);
const ESRCH: i32 = -(nix::errno::Errno::ESRCH as i32);

/// A connection to rtnetlink in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Routing {
    handle: Handle,
    task: tokio::task::JoinHandle<()>,
    lo: u32,
}

impl Drop for Routing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Routing {
    /// Opens the connection. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// The socket cannot be made, or the namespace has no `lo`.
    pub(super) fn open() -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection_with_strict_check()?;
        let lo = if_nametoindex("lo").map_err(io::Error::from)?;
        Ok(Self {
            handle,
            task: tokio::spawn(connection),
            lo,
        })
    }

    /// Adds what is missing and returns it, with the first refusal; the rest is added nevertheless. Adding is exclusive, so
    /// what is there already is left alone: no listing.
    pub(super) async fn ensure(&self, plan: Plan, families: &[IpFamily]) -> (Vec<Item>, Result<(), String>) {
        let mut added = Vec::new();
        let mut failure = Ok(());
        for family in families {
            let result = self.handle.route().add(self.route(plan, *family)).execute().await;
            failure = failure.and(record(Item::Route(*family, plan.table), result, EEXIST, &mut added));
            for (priority, rule) in rules(plan, *family) {
                let mut request = self.handle.rule().add();
                *request.message_mut() = rule;
                let result = request.execute().await;
                failure = failure.and(record(Item::Rule(*family, priority), result, EEXIST, &mut added));
            }
        }
        (added, failure)
    }

    /// Removes our rules and routes, as far as they exist, and returns what was there.
    ///
    /// # Errors
    /// The first refusal; the rest is removed nevertheless.
    pub(super) async fn remove(&self, plan: Plan) -> Result<Vec<Item>, String> {
        let mut removed = Vec::new();
        let mut failure = Ok(());
        for family in [IpFamily::V4, IpFamily::V6] {
            for (priority, rule) in rules(plan, family) {
                let result = self.handle.rule().del(rule).execute().await;
                let result = record(Item::Rule(family, priority), result, ENOENT, &mut removed);
                failure = failure.and(result);
            }
            let result = self.handle.route().del(self.route(plan, family)).execute().await;
            let result = record(Item::Route(family, plan.table), result, ESRCH, &mut removed);
            failure = failure.and(result);
        }
        // A family that is compiled out or disabled has nothing of ours.
        match failure {
            Err(e) if !e.contains("not supported") => Err(e),
            _ => Ok(removed),
        }
    }

    /// All routing rules of a family.
    pub(super) async fn rules(&self, family: IpFamily) -> Result<Vec<Rule>, String> {
        Ok(self
            .rule_messages(family)
            .await?
            .iter()
            .map(|m| Rule::read(m, family))
            .collect())
    }

    async fn rule_messages(&self, family: IpFamily) -> Result<Vec<RuleMessage>, String> {
        let version = match family {
            IpFamily::V4 => IpVersion::V4,
            IpFamily::V6 => IpVersion::V6,
        };
        let messages: Result<Vec<RuleMessage>, _> = self.handle.rule().get(version).execute().try_collect().await;
        messages.map_err(|e| format!("cannot list {family} routing rules: {e}"))
    }

    /// Removes every rule and route with our protocol number that no plan of a live instance needs. Returns what was
    /// removed and what was kept.
    pub(super) async fn remove_leftovers(&self, live: &[Plan]) -> Result<(Vec<Item>, Vec<Item>), String> {
        let (mut removed, mut kept) = (Vec::new(), Vec::new());
        for family in [IpFamily::V4, IpFamily::V6] {
            if family == IpFamily::V6 && !Path::new("/proc/net/if_inet6").exists() {
                continue;
            }
            for message in self.rule_messages(family).await? {
                let rule = Rule::read(&message, family);
                if !rule.ours() {
                    continue;
                }
                let item = Item::Rule(family, rule.priority);
                if live
                    .iter()
                    .any(|p| (p.priority..=p.priority + 2).contains(&rule.priority))
                {
                    kept.push(item);
                } else {
                    record(
                        item,
                        self.handle.rule().del(message).execute().await,
                        ENOENT,
                        &mut removed,
                    )?;
                }
            }
            for (message, table) in self.our_routes(family).await? {
                let item = Item::Route(family, table);
                if live.iter().any(|p| p.table == table) {
                    kept.push(item);
                } else {
                    record(
                        item,
                        self.handle.route().del(message).execute().await,
                        ESRCH,
                        &mut removed,
                    )?;
                }
            }
        }
        Ok((removed, kept))
    }

    async fn our_routes(&self, family: IpFamily) -> Result<Vec<(RouteMessage, u32)>, String> {
        let mut filter = empty_route(family);
        filter.header.table = 0;
        filter.header.protocol = RouteProtocol::Other(PROTOCOL);
        let routes: Result<Vec<RouteMessage>, _> = self.handle.route().get(filter).execute().try_collect().await;
        let routes = routes.map_err(|e| format!("cannot list {family} routes: {e}"))?;
        let ours = routes
            .into_iter()
            .filter(|r| r.header.protocol == RouteProtocol::Other(PROTOCOL));
        Ok(ours.map(|r| (r.clone(), table_of(&r))).collect())
    }

    /// Routes of a table that are not our local default route, in words.
    pub(super) async fn foreign_routes(&self, plan: Plan, family: IpFamily) -> Result<Vec<String>, String> {
        let mut filter = empty_route(family);
        set_table(&mut filter, plan.table);
        let routes: Result<Vec<RouteMessage>, _> = self.handle.route().get(filter).execute().try_collect().await;
        let routes = match routes {
            // With strict checking the kernel answers so where the table does not exist.
            Err(rtnetlink::Error::NetlinkError(e)) if e.raw_code() == ENOENT => Vec::new(),
            other => other.map_err(|e| format!("cannot list {family} routes of table {}: {e}", plan.table))?,
        };
        let foreign = routes.iter().filter(|r| {
            let ours = r.header.kind == RouteType::Local && r.header.destination_prefix_length == 0;
            table_of(r) == plan.table && !ours
        });
        Ok(foreign
            .map(|r| {
                format!(
                    "{:?} route, prefix length {}",
                    r.header.kind, r.header.destination_prefix_length
                )
            })
            .collect())
    }

    fn route(&self, plan: Plan, family: IpFamily) -> RouteMessage {
        let mut message = match family {
            IpFamily::V4 => RouteMessageBuilder::<Ipv4Addr>::new().build(),
            IpFamily::V6 => RouteMessageBuilder::<Ipv6Addr>::new().build(),
        };
        message.header.kind = RouteType::Local;
        message.header.protocol = RouteProtocol::Other(PROTOCOL);
        message.header.scope = match family {
            IpFamily::V4 => RouteScope::Host,
            IpFamily::V6 => RouteScope::Universe,
        };
        set_table(&mut message, plan.table);
        message.attributes.push(RouteAttribute::Oif(self.lo));
        message
    }
}

/// A route message that asks for nothing in particular: a filter for listings.
fn empty_route(family: IpFamily) -> RouteMessage {
    let mut message = match family {
        IpFamily::V4 => RouteMessageBuilder::<Ipv4Addr>::new().build(),
        IpFamily::V6 => RouteMessageBuilder::<Ipv6Addr>::new().build(),
    };
    message.header.protocol = RouteProtocol::Unspec;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unspec;
    message
}

fn table_of(message: &RouteMessage) -> u32 {
    let attribute = message.attributes.iter().find_map(|a| match a {
        RouteAttribute::Table(t) => Some(*t),
        _ => None,
    });
    attribute.unwrap_or(u32::from(message.header.table))
}

fn set_table(message: &mut RouteMessage, table: u32) {
    message.header.table = u8::try_from(table).unwrap_or(0);
    message.attributes.push(RouteAttribute::Table(table));
}

/// Adds `item` to `done` if the request did something; `nothing` is the kernel's code for "was so already".
fn record(item: Item, result: Result<(), rtnetlink::Error>, nothing: i32, done: &mut Vec<Item>) -> Result<(), String> {
    match result {
        Ok(()) => {
            done.push(item);
            Ok(())
        }
        Err(rtnetlink::Error::NetlinkError(e)) if e.raw_code() == nothing => Ok(()),
        Err(e) => Err(format!("{item}: {e}")),
    }
}

/// A socket that hears of every change of rules and routes in this namespace.
pub(super) struct Changes(TokioSocket);

impl Changes {
    /// Subscribes. Must run inside a tokio runtime.
    pub(super) fn open() -> io::Result<Self> {
        // RTNLGRP_IPV4_ROUTE, IPV4_RULE, IPV6_ROUTE, IPV6_RULE of include/uapi/linux/rtnetlink.h.
        const GROUPS: [u32; 4] = [7, 8, 11, 19];
        let mut socket = <TokioSocket as AsyncSocket>::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind_auto()?;
        for group in GROUPS {
            socket.socket_mut().add_membership(group)?;
        }
        Ok(Self(socket))
    }

    /// Waits until a rule or route was removed, or until messages were lost (then one may have been).
    pub(super) async fn removal(&mut self) {
        const RTM_DELROUTE: u16 = 25;
        const RTM_DELRULE: u16 = 33;
        loop {
            let Ok((message, _)) = self.0.recv_from_full().await else {
                return;
            };
            // One datagram carries one notification; its type follows the 32-bit length.
            if let [_, _, _, _, low, high, ..] = message.as_slice()
                && matches!(u16::from_ne_bytes([*low, *high]), RTM_DELROUTE | RTM_DELRULE)
            {
                return;
            }
        }
    }
}

/// Whether the node can carry IPv6 in this namespace, and if not, why.
pub(super) fn ipv6_unavailable() -> Option<&'static str> {
    if !Path::new("/proc/net/if_inet6").exists() {
        return Some("the kernel runs without IPv6");
    }
    // `/proc/sys/net` shows the namespace of the reading thread.
    match std::fs::read_to_string("/proc/sys/net/ipv6/conf/lo/disable_ipv6") {
        Ok(text) if text.trim() == "0" => None,
        Ok(_) => Some("net.ipv6.conf.lo.disable_ipv6 is 1"),
        Err(_) => Some("net.ipv6 settings cannot be read"),
    }
}

//! Attaches our programs as clsact filters: on the host's end of every pod's veth, and on uplinks
//! of kernels without TCX.
//!
//! A filter lives as long as its link and needs no file descriptor: it survives the agent.
//! Attaching one takes 0.03 ms, where a TCX link waits some 15 ms for an RCU grace period. Our
//! filters are recognised by priority, handle and name together. Foreign filters are never touched,
//! and neither is the qdisc, even if this agent created it.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::RawFd;

use nix::errno::Errno;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage,
    TcOption,
};
use steps::Hook;

use crate::error::is;
use crate::netlink::socket::{Answer, Netlink, Request};

/// Greater than the priorities that administrators and most tools choose, less than those that the
/// kernel assigns (49152 and up).
const PRIORITY: u16 = 49_000;

/// Fixed handle. With handles that the kernel assigned, agents deleted one another's filters.
const HANDLE: TcHandle = TcHandle { major: 0, minor: 1 };

/// Kind of the qdisc that has our filters.
pub(crate) const CLSACT: &str = "clsact";

/// Kind of the qdisc that honours departure times (EDT) of packets.
pub(crate) const FQ: &str = "fq";

/// `ETH_P_ALL` in network byte order.
const ALL_PROTOCOLS: u32 = 0x0003_u16.to_be() as u32;

/// Returns the name of a hook's filter.
fn name(hook: Hook) -> String {
    format!("viaduct/{}", crate::bpf::program_names::name(hook))
}

/// Returns the parent handle of a hook: clsact's ingress or egress.
fn parent(hook: Hook) -> TcHandle {
    let minor = match hook {
        Hook::FromPod | Hook::FromBusyPod | Hook::UplinkIn => TcHandle::MIN_INGRESS,
        Hook::ToPod | Hook::UplinkOut => TcHandle::MIN_EGRESS,
    };
    TcHandle {
        major: u16::MAX,
        minor,
    }
}

/// Attaches programs, or replaces our filters atomically, so that no packet passes without a
/// program. After a failure, only the filters that existed before are left.
pub(crate) fn attach(
    netlink: &mut Netlink,
    index: u32,
    programs: &[(Hook, RawFd)],
) -> io::Result<()> {
    let mut requests = vec![Request::change(clsact(index), NLM_F_CREATE | NLM_F_EXCL)];
    requests.extend(programs.iter().map(|(hook, program)| {
        let filter = Message::NewTrafficFilter(filter(index, *hook, *program));
        Request::change(filter, NLM_F_CREATE | NLM_F_EXCL)
    }));
    let mut answers = netlink.request_all(requests)?.into_iter();
    let qdisc = answers.next().unwrap_or(Ok(None));
    let mut failure = qdisc.err().filter(|error| !is(error, Errno::EEXIST));
    let mut made = Vec::new();
    for (answer, (hook, program)) in answers.zip(programs) {
        match answer {
            Ok(_) => made.push(*hook),
            Err(error) if is(&error, Errno::EEXIST) => {
                failure = failure.or(replace(netlink, index, *hook, *program).err());
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    let Some(failure) = failure else {
        return Ok(());
    };
    for hook in made {
        if let Err(error) = detach(netlink, index, hook) {
            tracing::error!(link = index, ?hook, %error, "cannot detach a filter after a failed attach: it stays attached");
        }
    }
    Err(failure)
}

fn replace(netlink: &mut Netlink, index: u32, hook: Hook, program: RawFd) -> io::Result<()> {
    if is_attached(netlink, index, hook)? {
        netlink.change(Message::NewTrafficFilter(filter(index, hook, program)), 0)
    } else {
        // A foreign filter has our priority and handle.
        Err(Errno::EEXIST.into())
    }
}

/// Detaches a program of ours. A program that is not attached is success.
pub(crate) fn detach(netlink: &mut Netlink, index: u32, hook: Hook) -> io::Result<()> {
    if !is_attached(netlink, index, hook)? {
        return Ok(());
    }
    netlink.change(Message::DelTrafficFilter(empty(index, hook)), 0)
}

/// Detaches the uplinks' programs from all links that have one.
pub(crate) fn detach_from_uplinks(netlink: &mut Netlink) -> io::Result<()> {
    let links: Vec<u32> = links_with(netlink, CLSACT)?.into_iter().collect();
    let attached = attached(netlink, &links)?;
    for (index, hooks) in links.into_iter().zip(attached) {
        for hook in hooks {
            if !hook.is_of_pods() {
                detach(netlink, index, hook)?;
            }
        }
    }
    Ok(())
}

fn is_attached(netlink: &mut Netlink, index: u32, hook: Hook) -> io::Result<bool> {
    Ok(attached(netlink, &[index])?
        .first()
        .is_some_and(|hooks| hooks.contains(&hook)))
}

/// Returns the hooks of our programs that are attached, for each link.
pub(crate) fn attached(netlink: &mut Netlink, links: &[u32]) -> io::Result<Vec<BTreeSet<Hook>>> {
    let ids = attached_ids(netlink, links)?.into_iter();
    Ok(ids.map(|of_link| of_link.into_keys().collect()).collect())
}

/// As [`attached`], with the ids of the programs.
pub(crate) fn attached_ids(
    netlink: &mut Netlink,
    links: &[u32],
) -> io::Result<Vec<BTreeMap<Hook, Option<u32>>>> {
    const SIDES: [Hook; 2] = [Hook::FromPod, Hook::ToPod];
    let of_link = |index: &u32| SIDES.map(|side| empty(*index, side));
    let requests = links
        .iter()
        .flat_map(of_link)
        .map(|query| Request::get(Message::GetTrafficFilter(query)));
    let answers = netlink.request_all(requests.collect())?;
    answers
        .chunks(SIDES.len())
        .map(|sides| {
            sides
                .iter()
                .zip(SIDES)
                .map(|(answer, side)| ours(answer, side))
                .collect::<io::Result<Vec<_>>>()
        })
        .map(|sides| Ok(sides?.into_iter().flatten().collect()))
        .collect()
}

/// Returns the kinds of foreign filters that run after our program on ingress of a link. Where our
/// program is a TCX program, those are all filters.
pub(crate) fn foreign_after_ours(
    netlink: &mut Netlink,
    index: u32,
) -> io::Result<BTreeSet<String>> {
    let mut query = TcMessage::default();
    query.header.index = index.cast_signed();
    query.header.parent = parent(Hook::UplinkIn);
    let messages = match netlink.dump(&Message::GetTrafficFilter(query)) {
        Err(error) if is_absence(&error) => Vec::new(),
        other => other?,
    };
    let filters = messages.iter().filter_map(|message| match message {
        Message::NewTrafficFilter(filter) => Some(filter),
        _ => None,
    });
    // The dump also lists each filter's group, without options.
    let (ours, foreign): (Vec<_>, Vec<_>) = filters
        .filter(|filter| has_options(filter))
        .partition(|filter| filter_name(filter) == Some(name(Hook::UplinkIn).as_str()));
    let first = ours.first().map_or(0, |ours| priority(ours));
    let after = foreign
        .into_iter()
        .filter(|filter| priority(filter) >= first);
    Ok(after.map(kind).collect())
}

fn has_options(filter: &TcMessage) -> bool {
    let mut attributes = filter.attributes.iter();
    attributes.any(|attribute| matches!(attribute, TcAttribute::Options(_)))
}

/// Returns the priority; filters with smaller ones run first.
const fn priority(filter: &TcMessage) -> u32 {
    filter.header.info >> 16
}

fn kind(filter: &TcMessage) -> String {
    let kind = filter
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.clone()),
            _ => None,
        });
    kind.unwrap_or_default()
}

/// Returns the indexes of the links that have a qdisc of this kind.
pub(crate) fn links_with(netlink: &mut Netlink, kind: &str) -> io::Result<BTreeSet<u32>> {
    let qdiscs = netlink.dump(&Message::GetQueueDiscipline(TcMessage::default()))?;
    let kind = TcAttribute::Kind(kind.to_owned());
    let links = qdiscs.iter().filter_map(|message| match message {
        Message::NewQueueDiscipline(qdisc) if qdisc.attributes.contains(&kind) => {
            Some(qdisc.header.index.cast_unsigned())
        }
        _ => None,
    });
    Ok(links.collect())
}

/// Returns the hook of the filter in an answer, and its program's id, if the filter is ours.
fn ours(answer: &Answer, side: Hook) -> io::Result<Option<(Hook, Option<u32>)>> {
    match answer {
        Ok(Some(Message::NewTrafficFilter(filter))) => {
            let given = filter_name(filter);
            let same =
                |hook: &Hook| parent(*hook) == parent(side) && given == Some(name(*hook).as_str());
            let hook = Hook::ALL.into_iter().find(same);
            Ok(hook.map(|hook| (hook, program_id(filter))))
        }
        Ok(_) => Ok(None),
        // No such filter, chain or link; `EINVAL` and `EOPNOTSUPP` mean that there is no clsact
        // qdisc.
        Err(error) if is_absence(error) => Ok(None),
        Err(error) => Err(io::Error::from_raw_os_error(
            error.raw_os_error().unwrap_or(Errno::EIO as i32),
        )),
    }
}

fn is_absence(error: &io::Error) -> bool {
    crate::error::is_gone(error) || is(error, Errno::EINVAL) || is(error, Errno::EOPNOTSUPP)
}

fn filter_name(filter: &TcMessage) -> Option<&str> {
    options(filter).find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => Some(name.as_str()),
        _ => None,
    })
}

fn program_id(filter: &TcMessage) -> Option<u32> {
    options(filter).find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => Some(*id),
        _ => None,
    })
}

fn options(filter: &TcMessage) -> impl Iterator<Item = &TcOption> {
    filter
        .attributes
        .iter()
        .filter_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        })
        .flatten()
}

fn clsact(index: u32) -> Message {
    let mut message = TcMessage::default();
    message.header.index = index.cast_signed();
    message.header.handle = TcHandle {
        major: u16::MAX,
        minor: 0,
    };
    message.header.parent = TcHandle::CLSACT;
    message.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
    Message::NewQueueDiscipline(message)
}

fn filter(index: u32, hook: Hook, program: RawFd) -> TcMessage {
    let mut message = empty(index, hook);
    let options = [
        TcFilterBpfOption::ProgFd(program.cast_unsigned()),
        TcFilterBpfOption::ProgName(name(hook)),
        TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
    ];
    message.attributes = vec![
        TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
        TcAttribute::Options(options.map(TcOption::Bpf).into()),
    ];
    message
}

fn empty(index: u32, hook: Hook) -> TcMessage {
    let mut message = TcMessage::default();
    message.header = TcHeader {
        index: index.cast_signed(),
        handle: HANDLE,
        parent: parent(hook),
        info: u32::from(PRIORITY) << 16 | ALL_PROTOCOLS,
        ..TcHeader::default()
    };
    message
}

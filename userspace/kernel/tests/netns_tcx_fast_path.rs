//! TCX fast path of a high-traffic pod: attached beside the filters, replaced in place, and removed
//! completely.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeSet;

use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramInfo, SchedClassifier, TcAttachType};
use kernel::{Host, Kernel};
use model::{Attachment, IfName};
use steps::{Hook, Step};
use support::foreign::ForeignProgram;
use support::skip::has_tcx;
use support::*;

fn fast_path() -> BTreeSet<Hook> {
    BTreeSet::from([Hook::FromBusyPod])
}

fn name(attachment: &Attachment) -> IfName {
    attachment.host_link().name().clone()
}

fn attach_fast_path(attachment: &Attachment) -> Step {
    Step::Attach {
        link: name(attachment),
        hooks: fast_path(),
    }
}

/// Returns the TCX programs on ingress of a link, with their ids.
fn programs(link: &IfName) -> Vec<(String, u32)> {
    let (_, programs) = SchedClassifier::query_tcx(link.as_str(), TcAttachType::Ingress).unwrap();
    let named = |info: &ProgramInfo| (info.name_as_str().unwrap().to_owned(), info.id());
    programs.iter().map(named).collect()
}

fn names(link: &IfName) -> Vec<String> {
    programs(link).into_iter().map(|(name, _)| name).collect()
}

/// Runs `check` with a pod and its filters; skips it on a kernel without TCX.
fn with_pod(check: impl FnOnce(&Node, Host, Attachment) + Send + 'static) {
    if !has_tcx() {
        return;
    }
    on_a_node(|node| {
        let mut host = node.host();
        let attachment = attachment(&node.add_netns("pod"), 2);
        execute(&mut host, &bridge_steps());
        execute(&mut host, &pod_steps(&attachment));
        check(node, host, attachment);
    });
}

#[test]
fn the_tcx_fast_path_is_attached_once_observed_and_detached() {
    with_pod(|_, mut host, attachment| {
        let link = name(&attachment);
        execute(
            &mut host,
            &[attach_fast_path(&attachment), attach_fast_path(&attachment)],
        );
        assert_eq!(names(&link), ["from_busy_pod"]);
        let all: BTreeSet<Hook> = pod_hooks().union(&fast_path()).copied().collect();
        assert_eq!(observe(&mut host).links[&link].hooks, all);
        let detach = Step::Detach {
            link: link.clone(),
            hooks: fast_path(),
        };
        execute(&mut host, &[detach.clone(), detach]);
        assert_eq!(names(&link), [""; 0]);
        assert_eq!(observe(&mut host).links[&link].hooks, pod_hooks());
    });
}

#[test]
fn the_tcx_fast_path_survives_the_agent_and_the_next_one_replaces_it() {
    with_pod(|node, mut host, attachment| {
        let link = name(&attachment);
        execute(&mut host, &[attach_fast_path(&attachment)]);
        let before = programs(&link);
        drop(host);
        let mut host = node.host();
        assert_eq!(programs(&link), before);
        let none = BTreeSet::new();
        assert_eq!(
            observe(&mut host).links[&link].outdated,
            none,
            "the same object"
        );
        drop(host);
        let mut host = Host::open(&node.upgrade()).unwrap();
        let seen = observe(&mut host);
        assert_eq!(seen.links[&link].outdated, seen.links[&link].hooks);
        execute(&mut host, planner::plan_program_upgrade(&seen).steps());
        assert_eq!(names(&link), ["from_busy_pod"]);
        assert_ne!(programs(&link), before);
        assert_eq!(observe(&mut host).links[&link].outdated, none);
    });
}

#[test]
fn foreign_tcx_programs_beside_the_fast_path_survive() {
    with_pod(|node, mut host, attachment| {
        let link = name(&attachment);
        let mut foreign = ForeignProgram::new(node);
        let order = TcAttachOptions::TcxOrder(LinkOrder::default());
        foreign.attach(link.as_str(), TcAttachType::Ingress, order);
        execute(&mut host, &[attach_fast_path(&attachment)]);
        assert_eq!(names(&link), ["to_pod", "from_busy_pod"]);
        let detach = Step::Detach {
            link: link.clone(),
            hooks: fast_path(),
        };
        execute(&mut host, &[detach]);
        assert_eq!(names(&link), ["to_pod"]);
    });
}

#[test]
fn a_link_with_the_tcx_fast_path_can_be_deleted() {
    with_pod(|_, mut host, attachment| {
        execute(&mut host, &[attach_fast_path(&attachment)]);
        let delete = Step::DeleteVeth {
            link: model::ManagedLink::of(&attachment.key),
            alias: attachment.alias(),
        };
        execute(&mut host, &[delete.clone(), delete]);
        assert!(!observe(&mut host).links.contains_key(&name(&attachment)));
        assert!(
            host.execute(&attach_fast_path(&attachment))
                .unwrap_err()
                .is_gone()
        );
    });
}

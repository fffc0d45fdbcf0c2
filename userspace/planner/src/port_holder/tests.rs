//! Decisions about sockets of container runtimes.

use std::slice;

use proptest::prelude::*;
use steps::{PortReservations, PortUsers, Process, ReservationOwner};

use super::*;
use crate::port_reservation::attachment_reservations;
use crate::testing::{attachment, intent, port};

const ID: &str = "4f0c2b6e8d1a4f0c2b6e8d1a4f0c2b6e8d1a4f0c2b6e8d1a4f0c2b6e8d1a4f0c";
const PODMAN: u32 = 100;

fn process(pid: u32, command: &str, arguments: &[&str]) -> Process {
    Process {
        pid,
        command: command.to_owned(),
        arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
        is_root: true,
    }
}

fn conmon() -> Process {
    process(200, "conmon", &["/usr/bin/conmon", "-c", ID, "-u", ID])
}

fn published() -> Attachment {
    let mut request = intent(ID);
    request.port_mappings = vec![port("8080->80/tcp")];
    attachment(&request)
}

/// Returns an observation of the ports that were left to podman.
fn observed(attachment: &Attachment, holder: Option<&Process>, exists: bool) -> PortUsers {
    let owner = ReservationOwner {
        generation: attachment.generation,
        by: ReservedBy::Runtime,
    };
    let left = attachment_reservations(attachment);
    let v4 = left.iter().filter(|port| port.address.is_ipv4());
    PortUsers {
        port_reservations: left
            .iter()
            .map(|port| (*port, owner))
            .collect::<PortReservations>(),
        holders: v4
            .map(|port| (*port, holder.into_iter().cloned().collect()))
            .collect(),
        exists,
    }
}

fn words(plan: &Plan) -> Vec<String> {
    plan.steps().iter().map(ToString::to_string).collect()
}

#[test]
fn a_process_with_the_containers_id_among_its_arguments_is_of_its_runtime() {
    let container: ContainerId = ID.parse().unwrap();
    assert!(is_of_runtime(&conmon(), &container));
    let shim = process(1, "shim", &["shim", &format!("--cid={ID}")]);
    assert!(is_of_runtime(&shim, &container));
    let of_user = Process {
        is_root: false,
        ..conmon()
    };
    let other = process(1, "conmon", &["conmon", "-c", &ID.replace('4', "5")]);
    let part = process(1, "python3", &["python3", &format!("{ID}.py"), &ID[..63]]);
    for intruder in [of_user, other, part, process(1, "podman", &[])] {
        assert!(!is_of_runtime(&intruder, &container), "{intruder:?}");
    }
    // A short ID is a name, which any command line may contain.
    let server = process(1, "python3", &["python3", "server"]);
    assert!(!is_of_runtime(&server, &"server".parse().unwrap()));
}

#[test]
fn podman_is_found_behind_shells_and_other_plugins() {
    let ancestor = |pid, command: &str| Ancestor {
        pid,
        command: command.to_owned(),
        is_root: true,
    };
    let (podman, shell) = (ancestor(PODMAN, "podman"), ancestor(99, "sh"));
    let found = binding_runtime([shell.clone(), podman.clone(), shell.clone()]);
    assert_eq!(found, Some(PODMAN));
    let of_user = Ancestor {
        is_root: false,
        ..podman
    };
    assert_eq!(binding_runtime([shell, of_user]), None);
    assert_eq!(binding_runtime([ancestor(2, "containerd")]), None);
}

#[test]
fn a_port_that_the_runtime_has_is_left_to_it_and_an_intruders_is_not() {
    let attachment = published();
    let runtime = PortRuntime {
        container: &attachment.key.container_id,
        binder: Some(PODMAN),
    };
    let step = reserve(&attachment, attachment_reservations(&attachment))
        .next()
        .unwrap();
    let nginx = process(7, "nginx", &["nginx"]);
    let left = leave_to_runtime(&step, &[nginx.clone(), conmon()], runtime).unwrap();
    assert_eq!(
        left.to_string(),
        "leave port 0.0.0.0:8080/tcp to the container runtime"
    );
    assert_eq!(leave_to_runtime(&step, &[nginx], runtime), None);
    assert_eq!(leave_to_runtime(&step, &[], runtime), None);
    assert_eq!(leave_to_runtime(&Step::Sweep, &[conmon()], runtime), None);

    // podman 5 has bound it before the ADD; of another command of podman it is not.
    let podman = process(PODMAN, "podman", &["podman", "run"]);
    assert_eq!(
        leave_to_runtime(&step, slice::from_ref(&podman), runtime),
        Some(left)
    );
    let other = PortRuntime {
        binder: Some(PODMAN + 1),
        ..runtime
    };
    assert_eq!(leave_to_runtime(&step, &[podman], other), None);
}

#[test]
fn a_runtime_that_has_not_bound_its_ports_is_awaited_until_it_ends_or_is_overdue() {
    let attachment = published();
    let plan = |holder: Option<Process>, exists, overdue| {
        let observed = observed(&attachment, holder.as_ref(), exists);
        plan_left_ports(&attachment, PODMAN, &observed, overdue).map(|plan| words(&plan))
    };
    let podman = process(PODMAN, "podman", &["podman"]);
    assert_eq!(plan(None, true, false), None);
    assert_eq!(
        plan(Some(podman.clone()), true, false),
        None,
        "not conmon yet"
    );
    let bound = [
        "leave port 0.0.0.0:8080/tcp to the container runtime",
        "reserve port [::]:8080/tcp",
    ];
    assert_eq!(plan(Some(conmon()), true, false).unwrap(), bound);
    assert_eq!(plan(Some(podman), true, true).unwrap(), bound);
    let taken = [
        "reserve port 0.0.0.0:8080/tcp",
        "reserve port [::]:8080/tcp",
    ];
    assert_eq!(plan(None, false, false).unwrap(), taken);
    assert_eq!(plan(None, true, true).unwrap(), taken);
}

#[test]
fn only_ports_that_were_left_are_reserved_again() {
    let attachment = published();
    let mut observed = observed(&attachment, None, false);
    for owner in observed.port_reservations.values_mut() {
        owner.by = ReservedBy::Socket;
    }
    let plan = plan_left_ports(&attachment, PODMAN, &observed, false).unwrap();
    assert!(plan.is_empty());
}

proptest! {
    /// For any holder of the port: a finished plan covers each left port once, and gives none to a
    /// process of another container.
    #[test]
    fn a_left_port_ends_with_its_runtime_or_with_the_agent(
        pid in 1_u32..300, has_id: bool, is_root: bool, exists: bool, overdue: bool,
    ) {
        let attachment = published();
        let holder = Process {
            arguments: if has_id { conmon().arguments } else { Vec::new() },
            ..Process { pid, is_root, ..Process::default() }
        };
        let is_friend = (has_id && is_root) || pid == PODMAN;
        let observed = observed(&attachment, Some(&holder), exists);
        let Some(plan) = plan_left_ports(&attachment, PODMAN, &observed, overdue) else {
            prop_assert!(exists && !overdue && !(has_id && is_root));
            return Ok(());
        };
        prop_assert_eq!(plan.steps().len(), observed.port_reservations.len());
        for step in plan.steps() {
            let reserves = matches!(step, Step::ReservePort { .. });
            if let Step::LeavePort(leave) = step {
                prop_assert!(is_friend && leave.process.is_none());
                prop_assert!(leave.reservation.address.is_ipv4());
            } else {
                prop_assert!(reserves && (!is_friend || step.to_string().contains('[')));
            }
        }
    }
}

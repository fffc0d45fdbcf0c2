//! Tests of lease files, in directories of their own.

use super::*;

#[test]
fn the_folders_of_all_networks_are_listed_and_other_files_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none");
    assert!(folders(Some(&missing)).unwrap().is_empty());
    for network in ["one", "two"] {
        fs::create_dir(directory.path().join(network)).unwrap();
    }
    fs::write(directory.path().join("one/10.9.0.2"), "c1\r\neth0").unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    let found = folders(Some(directory.path())).unwrap();
    assert_eq!(found.len(), 2);
    let taken: Vec<IpAddr> = found
        .iter()
        .flat_map(|folder| folder.taken_by_host_local().unwrap().into_keys())
        .collect();
    assert_eq!(taken, ["10.9.0.2".parse::<IpAddr>().unwrap()]);
}

#[test]
fn an_entry_that_is_no_lease_file_takes_its_address_and_is_never_removed() {
    let directory = tempfile::tempdir().unwrap();
    let network: NetworkName = "net".parse().unwrap();
    let folder = LeaseFolder::new(Some(directory.path()), &network);
    let locked = folder.lock().unwrap();
    fs::create_dir(directory.path().join("net/10.9.0.2")).unwrap();
    fs::write(directory.path().join("net/10.9.0.3"), [0xff; 9]).unwrap();
    let owner = owner_of("c1", "eth0");
    locked.reserve("10.9.0.4".parse().unwrap(), &owner).unwrap();
    assert_eq!(folder.taken().unwrap().len(), 3);
    assert_eq!(folder.taken_by_host_local().unwrap().len(), 3);
    assert_eq!(folder.leases().unwrap().len(), 1);
    assert_eq!(locked.release(&owner).unwrap().len(), 1);
    assert_eq!(folder.taken().unwrap().len(), 2);
}

fn owner_of(container: &str, ifname: &str) -> Owner {
    Owner {
        container_id: container.to_owned(),
        ifname: Some(ifname.to_owned()),
    }
}

fn folder(data_dir: &Path) -> LeaseFolder {
    LeaseFolder::new(Some(data_dir), &"net".parse().unwrap())
}

/// behaviour R11
#[test]
fn lease_files_have_the_format_of_the_reference_plugin() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(directory.path());
    assert!(folder.leases().unwrap().is_empty() && !folder.exists());
    let inside = directory.path().join("net");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("10.1.0.2"), "old-one").unwrap();
    fs::write(inside.join("fd00::3"), "c1\r\neth0").unwrap();
    fs::write(inside.join("last_reserved_ip.0"), "10.1.0.2").unwrap();
    let leases = folder.leases().unwrap();
    assert_eq!(leases[&"fd00::3".parse().unwrap()], owner_of("c1", "eth0"));
    assert_eq!(leases[&"10.1.0.2".parse().unwrap()].ifname, None);
    assert_eq!(leases.len(), 2);

    let locked = folder.lock().unwrap();
    let address = "10.1.0.3".parse().unwrap();
    locked.reserve(address, &owner_of("c2", "net1")).unwrap();
    assert!(locked.reserve(address, &owner_of("c3", "eth0")).is_err());
    locked.put_last_reserved(0, address).unwrap();
    assert_eq!(fs::read(inside.join("10.1.0.3")).unwrap(), b"c2\r\nnet1");
    assert_eq!(
        fs::read(inside.join("last_reserved_ip.0")).unwrap(),
        b"10.1.0.3"
    );
    assert_eq!(folder.last_reserved().unwrap()[&0], address);
}

/// behaviour R11
#[test]
fn a_mirrored_lease_blocks_host_local_and_not_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(directory.path());
    let locked = folder.lock().unwrap();
    let [mirrored, reserved] = [IpAddr::from([10, 1, 0, 2]), IpAddr::from([10, 1, 0, 3])];
    locked.mirror(mirrored, &owner_of("c1", "eth0")).unwrap();
    locked.reserve(reserved, &owner_of("c2", "eth0")).unwrap();
    let text = fs::read_to_string(directory.path().join("net/10.1.0.2")).unwrap();
    assert_eq!(text.trim(), "c1\r\neth0", "the reference plugin trims");
    assert_eq!(folder.leases().unwrap()[&mirrored], owner_of("c1", "eth0"));
    let others = folder.taken_by_host_local().unwrap();
    assert_eq!(others.into_keys().collect::<Vec<_>>(), [reserved]);
    assert_eq!(folder.taken().unwrap().len(), 2);

    locked.mirror(mirrored, &owner_of("c3", "eth0")).unwrap();
    assert_eq!(folder.leases().unwrap()[&mirrored], owner_of("c3", "eth0"));
    assert!(locked.mirror(reserved, &owner_of("c3", "eth0")).is_err());
    assert!(locked.reserve(mirrored, &owner_of("c4", "eth0")).is_err());
    assert_eq!(locked.release(&owner_of("c3", "eth0")).unwrap(), [mirrored]);
}

/// A process that is killed leaves the draft, or the draft and the lease file.
#[test]
fn a_draft_of_a_killed_process_takes_no_address_and_changes_no_lease() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(directory.path());
    let draft = directory.path().join("net/lease.draft");
    let [first, second] = [IpAddr::from([10, 1, 0, 2]), IpAddr::from([10, 1, 0, 3])];
    let locked = folder.lock().unwrap();
    fs::write(&draft, "c1\r\neth0").unwrap();
    assert!(folder.taken().unwrap().is_empty() && folder.leases().unwrap().is_empty());
    locked.reserve(first, &owner_of("c2", "eth0")).unwrap();
    assert!(!draft.exists());
    fs::hard_link(directory.path().join("net/10.1.0.2"), &draft).unwrap();
    locked.reserve(second, &owner_of("c3", "eth0")).unwrap();
    assert_eq!(folder.leases().unwrap()[&first], owner_of("c2", "eth0"));
    assert_eq!(folder.leases().unwrap()[&second], owner_of("c3", "eth0"));
    drop(locked);
    fs::hard_link(directory.path().join("net/10.1.0.2"), &draft).unwrap();
    let locked = folder.lock().unwrap();
    assert!(!draft.exists());
    let refused = locked.reserve(first, &owner_of("c4", "eth0")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    assert!(!draft.exists());
    assert_eq!(folder.leases().unwrap()[&first], owner_of("c2", "eth0"));
}

#[test]
fn a_lease_file_has_its_owner_from_the_moment_at_which_it_exists() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(directory.path());
    let locked = folder.lock().unwrap();
    let owner = owner_of("c1", "eth0");
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..=255 {
                locked
                    .reserve(IpAddr::from([10, 1, 0, number]), &owner)
                    .unwrap();
            }
        });
        while !writer.is_finished() {
            let owners: Vec<Owner> = folder.leases().unwrap().into_values().collect();
            assert!(owners.iter().all(|other| *other == owner), "{owners:?}");
        }
    });
    assert_eq!(folder.leases().unwrap().len(), 256);
}

/// behaviour S10
#[test]
fn a_lease_release_concerns_one_interface_and_can_be_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(directory.path());
    let locked = folder.lock().unwrap();
    for (number, ifname) in [(2, "eth0"), (3, "net1")] {
        let address = IpAddr::from([10, 1, 0, number]);
        locked.reserve(address, &owner_of("c1", ifname)).unwrap();
    }
    let released = locked.release(&owner_of("c1", "net1")).unwrap();
    assert_eq!(released, [IpAddr::from([10, 1, 0, 3])]);
    assert!(locked.release(&owner_of("c1", "net1")).unwrap().is_empty());
    assert_eq!(folder.leases().unwrap().len(), 1);
}

#[test]
fn an_address_with_an_invalid_owner_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("net");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("10.1.0.2"), "../x\r\n/").unwrap();
    assert_eq!(folder(directory.path()).taken().unwrap().len(), 1);
}

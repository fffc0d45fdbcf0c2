//! Tests of saved lists of delegates: an ADD whose list no DEL could load, and a DEL with such a
//! list.

use std::cell::RefCell;
use std::process;

use super::*;

/// A directory of one test, with the agent's socket, to which nothing listens, and the file of the
/// network `a`.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("viaduct-{test}-{}", process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("nets")).unwrap();
        let network = r#"{"cniVersion":"1.0.0","name":"a","type":"viaduct-has-no-such-plugin"}"#;
        fs::write(path.join("nets/a.conf"), network).unwrap();
        Self(path)
    }

    fn saved(&self) -> PathBuf {
        self.0.join("delegates/n-c1-eth0.json")
    }

    /// Returns environment, header and text of a request with the annotation `networks`.
    fn request(&self, command: Command, networks: &str) -> (Environment, Header, String) {
        let annotations = json!({ "k8s.v1.cni.cncf.io/networks": networks });
        let config = json!({
            "cniVersion": "1.0.0", "name": "n", "type": "viaduct",
            "socket": self.0.join("v.sock"), "delegateDir": self.0.join("nets"),
            "runtimeConfig": { "io.kubernetes.cri.pod-annotations": annotations },
        });
        let environment = Environment {
            command,
            container_id: "c1".to_owned(),
            netns: "/run/netns/viaduct-has-no-such-namespace".to_owned(),
            ifname: "eth0".to_owned(),
            args: String::new(),
            path: self.0.join("bin").to_string_lossy().into_owned(),
        };
        let config = config.to_string();
        let header = Header::parse(&config).unwrap();
        (environment, header, config)
    }

    /// Executes a command with the annotation `networks`. Returns the result and the commands that
    /// were executed for the pod's own network.
    fn execute(&self, command: Command, networks: &str) -> (Result<String, Error>, Vec<Command>) {
        let (environment, header, config) = self.request(command, networks);
        let executed = RefCell::new(Vec::new());
        let own = |command| {
            executed.borrow_mut().push(command);
            Ok("own".to_owned())
        };
        let result = execute_with_delegates(&environment, &header, &config, own);
        (result, executed.into_inner())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns an annotation with `value` among the network's `cni-args`.
fn with_cni_args(value: &str) -> String {
    format!(r#"[{{"name":"a","cni-args":{{"x":{value}}}}}]"#)
}

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

/// The parser limits nesting, and the saved text is deeper than the annotation.
#[test]
fn an_add_whose_delegates_are_nested_too_deeply_to_be_loaded_is_refused_and_undone() {
    let folder = Folder::new("nested");
    let (result, executed) = folder.execute(Command::Add, &with_cni_args(&nested(123)));
    let error = result.unwrap_err();
    assert_eq!(error.code, 7, "{error:?}");
    assert!(error.msg.contains("recursion limit"), "{error:?}");
    assert_eq!(executed, [Command::Add, Command::Del]);
    assert!(!folder.saved().exists());
    let (result, executed) = folder.execute(Command::Del, "");
    assert_eq!(
        (result.unwrap().as_str(), &executed[..]),
        ("own", &[Command::Del][..])
    );
}

#[test]
fn an_add_whose_delegates_are_longer_than_a_file_that_is_loaded_is_refused_and_undone() {
    let folder = Folder::new("long");
    let long = format!("[{}0]", "0,".repeat(400_000));
    let (result, executed) = folder.execute(Command::Add, &with_cni_args(&long));
    let error = result.unwrap_err();
    assert_eq!(error.code, 7, "{error:?}");
    assert!(error.msg.ends_with("more than 4194304"), "{error:?}");
    assert_eq!(executed, [Command::Add, Command::Del]);
    assert!(!folder.saved().exists());
}

#[test]
fn delegates_are_loaded_as_they_were_saved() {
    let folder = Folder::new("loads");
    let networks = with_cni_args(&nested(100));
    let (environment, header, config) = folder.request(Command::Add, &networks);
    let found = Delegates::of(&environment, &header, &config).unwrap();
    found.save(&environment).unwrap();
    let loaded = found.load(&environment).unwrap();
    let ([(list, to)], [(again, to_again)]) = (&found.networks[..], &loaded[..]) else {
        panic!("one delegate: {loaded:?}");
    };
    assert_eq!(list, again);
    assert_eq!((&to.ifname, &to.args), (&to_again.ifname, &to_again.args));
}

#[test]
fn a_del_whose_saved_delegates_cannot_be_loaded_removes_the_pods_own_network() {
    let folder = Folder::new("unloadable");
    fs::create_dir_all(folder.0.join("delegates")).unwrap();
    for text in ["[", r#"[{"config":"{}","ifname":"net1"}]"#] {
        fs::write(folder.saved(), text).unwrap();
        let (result, executed) = folder.execute(Command::Del, "");
        let error = result.unwrap_err();
        assert!(matches!(error.code, 6 | 7), "{error:?}");
        assert_eq!(executed, [Command::Del]);
        assert!(folder.saved().exists(), "another DEL follows");
    }
}

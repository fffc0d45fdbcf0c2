//! The changes of the copied sources: what executes plugins in place of their functions, and what
//! makes assertions about rules of iptables, or needs a device that not every kernel has.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

const EXECUTE: &str = include_str!("../../assets/suites/execute.go");
const CNITOOL: &str = include_str!("../../assets/suites/cnitool.go");

/// Plugins with tests that call the functions of commands.
const CALLED: [(&str, &str); 6] = [
    ("host-local", "plugins/ipam/host-local"),
    ("bridge", "plugins/main/bridge"),
    ("tuning", "plugins/meta/tuning"),
    ("portmap", "plugins/meta/portmap"),
    ("firewall", "plugins/meta/firewall"),
    ("bandwidth", "plugins/meta/bandwidth"),
];

/// Functions that implement a command, with the command.
const COMMANDS: [(&str, &str); 4] = [
    ("cmdAdd", "ADD"),
    ("cmdDel", "DEL"),
    ("cmdCheck", "CHECK"),
    ("cmdStatus", "STATUS"),
];

/// Texts of tests: the file, the text, and its replacement.
const TEXTS: [(&str, &str, &str); 9] = [
    // The agent of a namespace ends with the namespace.
    (
        "pkg/testutils/netns_linux.go",
        "\tnsPath := ns.Path()\n",
        "\tnsPath := ns.Path()\n\tendAgent(nsPath)\n",
    ),
    // A veth pair is an interface that each kernel has; a dummy is not.
    (
        "plugins/meta/tuning/tuning_test.go",
        "&netlink.Dummy{",
        "&netlink.Veth{PeerName: \"peer0\",",
    ),
    (
        "plugins/meta/firewall/firewall_iptables_test.go",
        "&netlink.Dummy{",
        "&netlink.Veth{PeerName: \"peer0\",",
    ),
    // The plugins of PATH instead of those that the tests build.
    (
        "plugins/main/loopback/loopback_suite_test.go",
        "gexec.Build(\"github.com/containernetworking/plugins/plugins/main/loopback\")",
        "exec.LookPath(\"loopback\")",
    ),
    (
        "plugins/main/loopback/loopback_suite_test.go",
        "\"github.com/onsi/gomega/gexec\"",
        "\"os/exec\"",
    ),
    (
        "plugins/main/loopback/loopback_suite_test.go",
        "\tgexec.CleanupBuildArtifacts()\n",
        "",
    ),
    (
        "integration/integration_linux_test.go",
        "cniPath, err = filepath.Abs(\"../bin\")",
        "cniPath, err = exec.LookPath(\"bridge\")\n\t\tcniPath = filepath.Dir(cniPath)",
    ),
    // Connectivity is tested without the chain of the reference's portmap.
    (
        "plugins/meta/portmap/portmap_integ_test.go",
        "_, err = ipt.List(\"nat\", dnatChainName)\n\t\t\t\tExpect(err).NotTo(HaveOccurred())",
        "_, _ = ipt.List(\"nat\", dnatChainName)",
    ),
    (
        "plugins/meta/portmap/portmap_integ_test.go",
        "_, err = ipt.List(\"nat\", dnatChainName)\n\t\t\t\tExpect(err).To(HaveOccurred())",
        "_, _ = ipt.List(\"nat\", dnatChainName)",
    ),
];

/// Returns the package of a plugin, as an argument of Go.
pub(super) fn folder_of(sources: &Path, plugin: &str) -> Result<String> {
    ["main", "meta", "ipam"]
        .map(|kind| format!("./plugins/{kind}/{plugin}"))
        .into_iter()
        .find(|folder| sources.join(folder).is_dir())
        .with_context(|| format!("{} has no plugin {plugin}", sources.display()))
}

/// Changes the copied sources.
pub(super) fn change(sources: &Path) -> Result<()> {
    fs::write(sources.join("pkg/testutils/execute.go"), EXECUTE)?;
    fs::create_dir_all(sources.join("cnitool"))?;
    fs::write(sources.join("cnitool/main.go"), CNITOOL)?;
    for (file, text, replacement) in TEXTS {
        let path = sources.join(file);
        let before = fs::read_to_string(&path).with_context(|| format!("no {file}"))?;
        ensure!(before.contains(text), "{file} does not contain {text:?}");
        fs::write(path, before.replace(text, replacement))?;
    }
    for (plugin, folder) in CALLED {
        let functions = rename(&sources.join(folder))?;
        fs::write(
            sources.join(folder).join("execute.go"),
            shim(plugin, &functions),
        )?;
    }
    Ok(())
}

/// Renames the functions of commands in a package, and returns those that it had.
fn rename(package: &Path) -> Result<Vec<(&'static str, &'static str)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(package)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.ends_with(".go") || name.ends_with("_test.go") {
            continue;
        }
        let mut text = fs::read_to_string(&path)?;
        for (function, command) in COMMANDS {
            let head = format!("func {function}(args *skel.CmdArgs) error {{");
            if text.contains(&head) {
                found.push((function, command));
                let renamed = head.replacen(function, &format!("{function}InProcess"), 1);
                text = text.replace(&head, &renamed);
            }
        }
        fs::write(&path, text)?;
    }
    Ok(found)
}

/// Returns a Go file in which the functions of commands execute the plugin.
fn shim(plugin: &str, functions: &[(&str, &str)]) -> String {
    let bodies = functions.iter().map(|(function, command)| {
        format!(
            "\nfunc {function}(args *skel.CmdArgs) error {{\n\
             \treturn testutils.Execute({plugin:?}, {command:?}, args)\n}}\n"
        )
    });
    let imports = [
        "github.com/containernetworking/cni/pkg/skel",
        "github.com/containernetworking/plugins/pkg/testutils",
    ]
    .map(|path| format!("\t{path:?}\n"));
    let head = format!("package main\n\nimport (\n{})\n", imports.concat());
    head + &bodies.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_of_commands_execute_the_plugin() {
        let text = shim("tuning", &[("cmdAdd", "ADD"), ("cmdDel", "DEL")]);
        assert!(text.starts_with("package main\n\nimport (\n\t\"github.com/"));
        let add = "func cmdAdd(args *skel.CmdArgs) error {\n\
                   \treturn testutils.Execute(\"tuning\", \"ADD\", args)\n}\n";
        assert!(text.contains(add), "{text}");
        assert!(text.contains("func cmdDel("), "{text}");
    }
}

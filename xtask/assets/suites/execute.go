package testutils

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// Execute runs a plugin of PATH as a runtime does, in the network namespace of the calling thread,
// in place of the function of the plugin under test. A CNI error of the plugin is returned.
func Execute(plugin, command string, args *skel.CmdArgs) error {
	path, err := exec.LookPath(plugin)
	if err != nil {
		return err
	}
	cmd := exec.Command(path)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"CNI_PATH=" + os.Getenv("PATH"),
		"CNI_COMMAND=" + command,
		"CNI_NETNS_OVERRIDE=1",
	}
	for key, value := range map[string]string{
		"CNI_CONTAINERID": args.ContainerID,
		"CNI_NETNS":       args.Netns,
		"CNI_IFNAME":      args.IfName,
		"CNI_ARGS":        args.Args,
	} {
		if value != "" {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin = bytes.NewReader(args.StdinData)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	os.Stderr.Write(stderr.Bytes())
	if err != nil {
		var answer types.Error
		if json.Unmarshal(stdout.Bytes(), &answer) == nil && answer.Msg != "" {
			return &answer
		}
		return fmt.Errorf("%s %s: %w: %s%s", plugin, command, err, stdout.String(), stderr.String())
	}
	_, err = os.Stdout.Write(stdout.Bytes())
	return err
}

// endAgent kills the agent of a network namespace, if there is one: the namespace lives as long.
func endAgent(path string) {
	var stat syscall.Stat_t
	if syscall.Stat(path, &stat) != nil {
		return
	}
	state := filepath.Join(os.Getenv("SUITES_AGENTS"), strconv.FormatUint(stat.Ino, 10))
	text, err := os.ReadFile(filepath.Join(state, "pid"))
	if err != nil {
		return
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	os.RemoveAll(state)
}

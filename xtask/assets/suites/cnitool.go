// Executes a network of $NETCONFPATH as the tool of the same name does: cnitool add|del NAME NETNS.
package main

import (
	"context"
	"crypto/sha512"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(verb, name, netns string) error {
	list, err := libcni.LoadConfList(os.Getenv("NETCONFPATH"), name)
	if err != nil {
		return err
	}
	cni := libcni.NewCNIConfig(filepath.SplitList(os.Getenv("CNI_PATH")), nil)
	runtime := &libcni.RuntimeConf{
		ContainerID: fmt.Sprintf("cnitool-%x", sha512.Sum512([]byte(netns)))[:28],
		NetNS:       netns,
		IfName:      "eth0",
	}
	if verb == "del" {
		return cni.DelNetworkList(context.Background(), list, runtime)
	}
	result, err := cni.AddNetworkList(context.Background(), list, runtime)
	if err != nil {
		return err
	}
	return result.Print()
}

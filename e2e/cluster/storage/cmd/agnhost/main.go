// What the suite for external storage needs of the image agnhost: to look at mounts, and to wait.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/kubernetes/test/images/agnhost/mounttest"
)

func main() {
	root := &cobra.Command{Use: "agnhost"}
	root.AddCommand(mounttest.CmdMounttest)
	root.AddCommand(&cobra.Command{Use: "pause", Run: func(*cobra.Command, []string) {
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
		<-ended
	}})
	if err := root.Execute(); err != nil {
		os.Exit(1)
	}
}

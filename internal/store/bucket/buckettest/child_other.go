//go:build !linux

package buckettest

import "os/exec"

func endWithUs(*exec.Cmd) {}

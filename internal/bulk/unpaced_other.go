//go:build !linux

package bulk

import (
	"net"
	"syscall"
)

func replacePacing(syscall.RawConn) string { return "" }

func restore(*net.TCPConn, string) {}

package gitload

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// EchoCommand is the process that echoes until its standard input is closed. It has a thread for each connection,
// blocked in read(2), so that only the kernel is between a request and its response.
func EchoCommand(env loadgen.Env) *cobra.Command {
	return &cobra.Command{
		Use:    "echo",
		Short:  "Echo for \"packhorse-bench neighbour\"",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var job echoJob
			in, err := loadgen.ReadJob(cmd, &job)
			if err != nil {
				return err
			}
			l, err := net.Listen("unix", job.Socket)
			if err != nil {
				return err
			}
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go echo(c.(*net.UnixConn))
				}
			}()
			fmt.Fprintln(env.Stdout, loadgen.LoadReady)
			_, err = io.Copy(io.Discard, in)
			return err
		},
	}
}

// echo echoes the bytes of a connection.
func echo(c *net.UnixConn) {
	f, err := c.File() // its reads block
	c.Close()
	if err != nil {
		return
	}
	defer f.Close()
	runtime.LockOSThread()
	buf := make([]byte, 4<<10)
	for n := 0; n < len(buf); {
		read, err := f.Read(buf[n:])
		if err != nil {
			return
		}
		if n += read; bytes.HasSuffix(buf[:n], []byte("\r\n\r\n")) {
			if _, err := io.WriteString(f, echoAnswer); err != nil {
				return
			}
			n = 0
		}
	}
}

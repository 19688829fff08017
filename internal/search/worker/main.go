package worker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/search/ipc"
)

// Main runs a worker of the given build. The arguments are "search", the memory limit in bytes and the directory of the
// shards, or "index" and the memory limit.
func Main(build ipc.Build, args []string, in *os.File, out io.Writer) error {
	if len(args) < 2 {
		return errors.New("no task: packhorse starts this program itself, to index and to search")
	}
	memory, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return fmt.Errorf("invalid memory limit %q: it has to be a number of bytes", args[1])
	}
	// When memory is short the kernel is to end this process before the server.
	os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0)
	// Files of the index are their owner's.
	unix.Umask(0o077)
	switch {
	case args[0] == "search" && len(args) == 3:
		return Search(SearchOptions{Build: build, Memory: memory, Dir: args[2], Control: in})
	case args[0] == "index" && len(args) == 2:
		return Index(IndexOptions{Build: build, Memory: memory, In: in, Out: out})
	}
	return fmt.Errorf("invalid arguments %q", args)
}

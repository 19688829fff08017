package worker

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Main does the work that args name: "search" and the limit of its memory and the directory, or "index" and the limit.
func Main(args []string, in *os.File, out io.Writer) error {
	if len(args) < 2 {
		return fmt.Errorf("this is for the server alone: it starts these processes")
	}
	memory, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return fmt.Errorf("bad limit of memory %q", args[1])
	}
	// When memory is short the kernel is to end this process before the server.
	os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0)
	// Files of the index are their owner's.
	unix.Umask(0o077)
	switch {
	case args[0] == "search" && len(args) == 3:
		return Search(SearchOptions{Memory: memory, Dir: args[2], Control: in})
	case args[0] == "index" && len(args) == 2:
		return Index(IndexOptions{Memory: memory, In: in, Out: out})
	}
	return fmt.Errorf("bad arguments %q", args)
}

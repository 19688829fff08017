package reaper

import (
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// A reaper begins here, before the rest of the program is initialised: the tables of search and of highlighting alone take 17 MB and most of a start's
// time, and the reaper is for machines that run out of memory. Packages are initialised in the order of their paths, as far as what they import allows
// (the Go specification, "Program initialization"), and this one waits for little: it must not import what waits for regexp, as Prometheus' client does.
func init() {
	if len(os.Args) != 3 || os.Args[1] != Name {
		return
	}
	if info, err := os.Stdin.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return // no server has started it
	}
	log := logger(os.Stderr, os.Args[2])
	if log == nil {
		return
	}
	if err := reap(os.Stdin, log); err != nil {
		fmt.Fprintln(os.Stderr, "packhorse:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// logger writes as the server does (observe.NewLogger), in the formats of its configuration; nil: it is none of these. There is nothing secret in what
// the reaper says.
func logger(to *os.File, format string) *slog.Logger {
	if format == "auto" {
		format = "json"
		if _, err := unix.IoctlGetTermios(int(to.Fd()), unix.TCGETS); err == nil {
			format = "text"
		}
	}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(to, nil))
	case "text":
		return slog.New(slog.NewTextHandler(to, nil))
	}
	return nil
}

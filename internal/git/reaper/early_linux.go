package reaper

import (
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// A reaper starts here, before the other packages of the program are initialized. Their tables take 12 MB and most of
// the time of a start, and the reaper is for machines that run out of memory.
//
// Packages are initialized in the order of their paths, as far as their imports allow (the Go specification, "Program
// initialization"). So this package must not import a package that imports regexp, such as Prometheus' client.
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

// logger returns a logger in a format of the server's configuration (observe.NewLogger), or nil if the format is
// unknown. The reaper logs no secrets, so nothing is redacted.
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

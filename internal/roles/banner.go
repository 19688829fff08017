package roles

import (
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/observe"
)

// startOf tells where the process listens.
func startOf(cfg Config, public, private net.Listener) started {
	scheme := "http"
	if cfg.HTTP.TLSCert != "" {
		scheme = "https"
	}
	s := started{PID: os.Getpid(), Root: cfg.Root, HTTP: scheme + "://" + dialable(public.Addr())}
	if private != nil {
		s.Ops = "http://" + dialable(private.Addr())
	}
	return s
}

// dialable is an address that a person can paste: a listener on all addresses is shown by the machine's name.
func dialable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			host = "localhost"
		}
		return net.JoinHostPort(host, port)
	}
	return addr.String()
}

// announce tells on the log's stream where the process listens and what to try: a few lines for people, one record where the
// log is JSON.
func (s started) announce(w io.Writer, log *slog.Logger, cfg Config) {
	example := exampleRepository(cfg.Root, cfg.State)
	clone := ""
	if example != "" {
		clone = "git clone " + s.HTTP + "/" + example
	}
	if cfg.Log.Format == "json" || cfg.Log.Format == "auto" && !observe.IsTerminal(w) {
		log.Info("serving", "root", s.Root, "http", s.HTTP, "ops", s.Ops, "clone", clone)
		return
	}
	fmt.Fprintf(w, "serving  %s\n     at  %s\n", s.Root, s.HTTP)
	if clone != "" {
		fmt.Fprintf(w, "    try  %s\n", clone)
	} else {
		fmt.Fprintf(w, "    try  git clone --bare <any repository> %s, then git clone %s/demo\n", filepath.Join(s.Root, "demo.git"), s.HTTP)
	}
	if s.Ops != "" {
		fmt.Fprintf(w, "metrics  %s/metrics\n", s.Ops)
	}
}

// How far the search for an example goes, whatever the size of the root.
const (
	exampleDirs    = 200 // directories looked into
	exampleEntries = 200 // entries read of each
)

// exampleRepository finds a repository below root, the nearest first, and returns its path in a URL; "" if a short
// search finds none.
func exampleRepository(root, state string) string {
	queue := []string{root}
	for looked := 0; len(queue) > 0 && looked < exampleDirs; looked++ {
		dir := queue[0]
		queue = queue[1:]
		for _, e := range readSome(dir) {
			path := filepath.Join(dir, e.Name())
			if !e.IsDir() || path == state {
				continue
			}
			if e.Name() != ".git" && !isRepository(path) {
				queue = append(queue, path)
				continue
			}
			rel, err := filepath.Rel(root, path)
			if err == nil && isRepository(path) {
				rel = strings.TrimSuffix(strings.TrimSuffix(rel, "/.git"), ".git")
				if rel != "" && !strings.ContainsAny(rel, " '\"\\$`") {
					return rel
				}
			}
		}
	}
	return ""
}

// readSome lists the first entries of a directory, by name; what cannot be read is empty.
func readSome(dir string) []fs.DirEntry {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	entries, _ := f.ReadDir(exampleEntries)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries
}

// isRepository applies git's own test, roughly: HEAD, objects and refs.
func isRepository(dir string) bool {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

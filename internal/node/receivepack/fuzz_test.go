package receivepack

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
)

// FuzzRequest reads requests of all kinds: an error or the commands, never more than was sent, and the same commands
// once a report is asked for.
func FuzzRequest(f *testing.F) {
	id, none := strings.Repeat("12", 20), strings.Repeat("0", 40)
	for _, seed := range []string{
		"", "0000", commands(reports, none+" "+id+" refs/heads/main") + "PACK", commands("", none+" "+id+" refs/heads/main"),
		commands("side-band-64k push-options", id+" "+none+" refs/heads/a", none+" "+id+" refs/heads/b") + "0008x=y\n0000",
		commands("quiet", "shallow "+id, none+" "+id+" refs/heads/x"), "0004" +
			"0001", commands("report-status object-format=sha256",
			strings.Repeat("0", 64)+" "+strings.Repeat("ab", 32)+" refs/x/y"),
	} {
		f.Add([]byte(seed))
	}
	server := &Server{options: Options{MaxOptions: 3, MaxCommands: 5}, memory: make(chan int64, 1)}
	server.memory <- 0
	read := func(request []byte, format git.ObjectFormat) (*pushRequest, string, error) {
		r := server.newRequestReader(bytes.NewReader(request))
		defer r.release()
		a, err := r.read(format, true)
		if err != nil {
			return nil, "", err
		}
		rest, _ := io.ReadAll(r.buffer)
		return a, string(rest), nil
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
			a, rest, err := read(request, format)
			if err != nil {
				continue
			}
			if string(a.head)+rest != string(request) {
				t.Fatalf("%q became %q and %q", request, a.head, rest)
			}
			if len(a.commands) == 0 || a.report {
				continue
			}
			b, _, err := read(a.withReport(), format)
			if err != nil {
				t.Fatalf("with a report: %q: %v", a.withReport(), err)
			}
			if len(b.commands) != len(a.commands) || b.commands[0] != a.commands[0] || !b.report && len(a.head) < 60_000 {
				t.Fatalf("with a report: %q became %q", a.head, b.head)
			}
		}
	})
}

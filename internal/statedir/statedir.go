// Package statedir is the directory in which a server keeps what is its own: who has it, where that process listens,
// and whose its files are.
//
// One process at a time has a state directory (Open, Take). While it runs, serve.json tells what it is and where it
// listens (Server). A note in the root of the repositories (WriteNote) leads commands to a state directory that is
// elsewhere. A command that root runs makes files that the server's user can use (Owner).
package statedir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/config"
)

// Running tells which process has a state directory.
func Running(state string) (s Server, err error) {
	nobody := fmt.Errorf("no server runs with the state directory %s; name another one with --state DIR", state)
	f, err := os.Open(filepath.Join(state, "serve.json"))
	if errors.Is(err, os.ErrNotExist) {
		return s, nobody
	}
	if err != nil {
		return s, fmt.Errorf("find the server: %w; run the command as the server's user", err)
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return s, nobody
	}
	if err := json.NewDecoder(io.LimitReader(f, 16<<10)).Decode(&s); err != nil || s.PID <= 1 {
		return s, fmt.Errorf("the server with the state directory %s is about to start or to end; try again", state)
	}
	return s, nil
}

// Signal is what the process writes a dump at. It is another one than people send: two SIGQUITs soon after each other
// end it, though two who ask did not know of each other.
func (s Server) Signal() syscall.Signal {
	if s.DumpSignal == int(DumpSignal) {
		return DumpSignal
	}
	return syscall.SIGQUIT // an older server
}

// Dir is the hold on a state directory. It is the file "serve.json" in it, locked as long as the process lives, however
// it ends; its content tells who holds it and where that process listens. A clean end leaves it empty: removing it
// would let two processes lock two files of the same name.
type Dir struct{ file *os.File }

// Server is what a running process tells of itself, in serve.json and at the start.
type Server struct {
	PID    int         `json:"pid"`
	Role   config.Role `json:"role"`
	Root   string      `json:"root,omitempty"`
	Config string      `json:"config,omitempty"` // absolute path of the configuration file, if there is one
	HTTP   string      `json:"http,omitempty"`   // URL of the public listener
	SSH    string      `json:"ssh,omitempty"`    // URL of the SSH listener
	Listen string      `json:"listen,omitempty"` // the node's port: HOST:PORT or unix:PATH
	Ops    string      `json:"ops,omitempty"`    // URL of the private listener
	Admin  string      `json:"admin,omitempty"`  // path of the admin socket
	Dumps  string      `json:"dumps,omitempty"`  // directory of the watchdog's dumps; without it SIGQUIT ends the process

	// Leaving says that the process ends, and that its state directory will be free after it has finished its requests.
	Leaving bool `json:"leaving,omitempty"`

	// asks for a dump; 0: SIGQUIT does, of which a second one ends the process
	DumpSignal int `json:"dump_signal,omitempty"`

	HostKeys []string `json:"host_keys,omitempty"` // fingerprints of the SSH host keys, each after its kind
}

// Who tells of a running process for a message.
func (s Server) Who() string {
	switch s.Role {
	case config.RoleGateway:
		return fmt.Sprintf("process %d, a gateway at %s", s.PID, s.HTTP)
	case config.RoleSearch:
		return fmt.Sprintf("process %d, which searches at %s", s.PID, s.Listen)
	case config.RoleStorage:
		return fmt.Sprintf("process %d, which serves %s at %s", s.PID, s.Root, s.Listen)
	}
	return fmt.Sprintf("process %d, which serves %s at %s", s.PID, s.Root, s.HTTP)
}

// TakenError is that another process has the state directory.
type TakenError struct {
	dir, who string
	leaving  bool // it is about to end, or nothing is known of it: it is on its way in or out
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("the state directory %s is in use by %s; stop it, or give this one a directory of its own with "+
		"--state", e.dir, e.who)
}

// Open takes the state directory, making it if need be. If another process has it, the error names that process.
func Open(dir string) (*Dir, error) {
	if err := Self().MakeStateDir(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "serve.json"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer f.Close()
		var other Server
		who := "another process"
		if json.NewDecoder(io.LimitReader(f, 4096)).Decode(&other) == nil && other.PID != 0 {
			who = other.Who()
		}
		return nil, &TakenError{dir, who, other.Leaving || other.PID == 0}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the state directory %s: %w", dir, err)
	}
	return &Dir{f}, nil
}

// Write replaces the file's content.
func (s *Dir) Write(st Server) error {
	text, err := json.Marshal(st)
	if err != nil {
		return err
	}
	if err := s.file.Truncate(0); err != nil {
		return err
	}
	_, err = s.file.WriteAt(append(text, '\n'), 0)
	return err
}

// Close empties the file and lets go of the directory. It may be called again, and does nothing then.
func (s *Dir) Close() error {
	if s.file == nil {
		return nil
	}
	file := s.file
	s.file = nil
	return errors.Join(file.Truncate(0), file.Close())
}

// pollInterval is how long to wait before the next look at a state directory that a process is about to leave.
const pollInterval = 20 * time.Millisecond

// Take is openState that waits for a process that is about to end, for as long as patience says.
func Take(ctx context.Context, dir string, patience time.Duration, log *slog.Logger) (*Dir, error) {
	end := time.Now().Add(patience)
	for told := false; ; told = true {
		s, err := Open(dir)
		taken, ok := errors.AsType[*TakenError](err)
		if !ok || !taken.leaving || time.Now().After(end) {
			return s, err
		}
		if !told {
			log.Info("waiting for the state directory", "dir", dir, "holder", taken.who)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pollInterval):
		}
	}
}

// DumpSignal asks for a dump, and for nothing else however often it comes.
const DumpSignal = syscall.SIGUSR1

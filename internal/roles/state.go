package roles

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/config"
)

// state is the hold on a state directory. It is the file "serve.json" in it, locked as long as the process lives, however it
// ends; its content tells who holds it and where that process listens. A clean end leaves it empty: removing it would let
// two processes lock two files of the same name.
type state struct{ file *os.File }

// started is what a running process tells of itself, in serve.json and at the start.
type started struct {
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

	DumpSignal int `json:"dump_signal,omitempty"` // asks for a dump; 0: SIGQUIT does, of which a second one ends the process

	HostKeys []string `json:"host_keys,omitempty"` // fingerprints of the SSH host keys, each after its kind
}

// who tells of a running process for a message.
func (s started) who() string {
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

// stateTaken is that another process has the state directory.
type stateTaken struct {
	dir, who string
	leaving  bool // it is about to end, or nothing is known of it: it is on its way in or out
}

func (e *stateTaken) Error() string {
	return fmt.Sprintf("the state directory %s is in use by %s; stop it, or give this one a directory of its own with --state", e.dir, e.who)
}

// openState takes the state directory, making it if need be. If another process has it, the error names that process.
func openState(dir string) (*state, error) {
	if err := (owner{os.Geteuid(), os.Getegid()}).mkdirState(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "serve.json"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer f.Close()
		var other started
		who := "another process"
		if json.NewDecoder(io.LimitReader(f, 4096)).Decode(&other) == nil && other.PID != 0 {
			who = other.who()
		}
		return nil, &stateTaken{dir, who, other.Leaving || other.PID == 0}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the state directory %s: %w", dir, err)
	}
	return &state{f}, nil
}

// write replaces the file's content.
func (s *state) write(st started) error {
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

// close empties the file and lets go of the directory. It may be called again, and does nothing then.
func (s *state) close() error {
	if s.file == nil {
		return nil
	}
	file := s.file
	s.file = nil
	return errors.Join(file.Truncate(0), file.Close())
}

// statePause is how long to wait before the next look at a state directory that a process is about to leave.
const statePause = 20 * time.Millisecond

// takeState is openState that waits for a process that is about to end, for as long as its end may take.
func takeState(ctx context.Context, cfg config.Config, log *slog.Logger) (*state, error) {
	patience := time.Now().Add(cfg.Shutdown.Delay.Duration + cfg.Shutdown.Grace.Duration + 2*closeLimit)
	for told := false; ; told = true {
		s, err := openState(cfg.State)
		taken, ok := errors.AsType[*stateTaken](err)
		if !ok || !taken.leaving || time.Now().After(patience) {
			return s, err
		}
		if !told {
			log.Info("waiting for the state directory", "dir", cfg.State, "holder", taken.who)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(statePause):
		}
	}
}

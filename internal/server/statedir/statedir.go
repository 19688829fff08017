// Package statedir manages state directories: their lock, the record of the process that uses one, and their owner.
//
// At most one process uses a state directory at a time (Open, Take). While it runs, serve.json describes the process
// (Server). If the state directory is not below the root of the repositories, a note in the root leads commands to it
// (WriteNote). A command that runs as root creates files that the server's user can use (Owner).
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
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// Durable lists the files and directories of a state directory that a backup has to have. Others are made again, or
// belong to a process.
var Durable = []string{
	formatName, "tokens", "ssh", "lfs.key", "webhooks", "events", "origin-permissions", "former-refs.json",
}

// Running returns the process that uses a state directory.
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
		return Server{}, fmt.Errorf("the server with the state directory %s is about to start or to end; try again", state)
	}
	return s, nil
}

// Dir is the lock on a state directory: the file "serve.json" in it, locked until the process ends. Its content is a
// Server. A clean end leaves the file empty, because without it two processes could lock two files of the same name.
type Dir struct{ file *os.File }

// Server describes a running process, in serve.json and in the log at the start.
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

	// Leaving reports that the process is shutting down. Its state directory is free once its requests have ended.
	Leaving bool `json:"leaving,omitempty"`

	HostKeys []string `json:"host_keys,omitempty"` // fingerprints of the SSH host keys, each after its kind
}

// Describe returns a description of the process for messages.
func (s Server) Describe() string {
	switch s.Role {
	case config.RoleGateway:
		return fmt.Sprintf("process %d, a gateway at %s", s.PID, s.HTTP)
	case config.RoleSearch:
		return fmt.Sprintf("process %d, a search process at %s", s.PID, s.Listen)
	case config.RoleStorage:
		return fmt.Sprintf("process %d, which serves %s at %s", s.PID, s.Root, s.Listen)
	}
	return fmt.Sprintf("process %d, which serves %s at %s", s.PID, s.Root, s.HTTP)
}

// TakenError reports that another process uses the state directory.
type TakenError struct {
	Root     string // of the other process, if it has one and is known
	dir, who string
	leaving  bool // it is about to end, or it is starting or ending and has not written its record
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("the state directory %s is in use by %s; stop it, or give this one a separate directory with "+
		"--state", e.dir, e.who)
}

// Holder returns a description of the other process.
func (e *TakenError) Holder() string { return e.who }

// Open locks the state directory and creates it if necessary. If another process uses it, the error is a *TakenError.
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
			who = other.Describe()
		}
		return nil, &TakenError{other.Root, dir, who, other.Leaving || other.PID == 0}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the state directory %s: %w", dir, err)
	}
	if err := claimFormat(dir); err != nil {
		f.Close()
		return nil, err
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

// Close empties the file and releases the directory. Further calls do nothing.
func (s *Dir) Close() error {
	if s.file == nil {
		return nil
	}
	file := s.file
	s.file = nil
	return errors.Join(file.Truncate(0), file.Close())
}

// pollInterval is the pause between attempts to lock a state directory that a process is about to release.
const pollInterval = 20 * time.Millisecond

// Take is Open, but waits up to patience for a process that is about to end.
func Take(ctx context.Context, dir string, patience time.Duration, log *slog.Logger) (*Dir, error) {
	end := time.Now().Add(patience)
	for isLogged := false; ; isLogged = true {
		s, err := Open(dir)
		taken, ok := errors.AsType[*TakenError](err)
		if !ok || !taken.leaving || time.Now().After(end) {
			return s, err
		}
		if !isLogged {
			log.Info("waiting for the state directory", "dir", dir, "holder", taken.who)
		}
		if retry.Sleep(ctx, pollInterval) != nil {
			return nil, err
		}
	}
}

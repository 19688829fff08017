package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
	"github.com/packhorse-git/packhorse/internal/store"
)

// Server is a server to be examined, which may run or not.
type Server struct {
	Config   config.Config
	Role     config.Role // assumed, if it does not run
	File     string      // of the configuration; "": the defaults
	Running  statedir.Server
	Getenv   func(string) string
	Deep     bool      // look for all objects of the repositories
	Progress io.Writer // a terminal; nil: none
	Ask      Ask
}

// Ask has the running process do work that takes it no time, and reads the result into v. what names the process in
// errors. known is false if the process does not have such work.
type Ask func(ctx context.Context, what string, work internalv1.AdminWork, name string, v any) (known bool, err error)

// Examine adds findings about the server, its machine and its repositories.
func (s *Server) Examine(ctx context.Context, r *Report) error {
	cfg, running := &s.Config, s.Running
	if s.File != "" {
		s.examineConfig(ctx, r)
	}
	switch {
	case running.PID != 0:
		r.Fact(GroupServer, running.Describe())
	case cfg.State == "":
		r.Fact(GroupServer, "not found: neither flags nor the configuration name its root or its state directory")
	default:
		r.Fact(GroupServer, "not running with the state directory "+cfg.State)
	}
	owner := userOf(cfg)
	if cfg.State != "" {
		r.Fact(GroupServer, "its files are "+owner.Name+"'s")
	}
	examineState(cfg, owner, r)
	if s.Role == config.RoleServe {
		if running.PID == 0 || running.Role.IsServe() {
			s.examineSearch(r)
		}
		examineBackup(cfg, r)
		Git(ctx, cfg.Git.Program, r)
		if isCache, _ := store.IsCache(cfg.Root); isCache || cfg.Store.Enabled() { // the copies belong to the server alone
			examineStore(ctx, cfg, r)
		} else if err := s.examineRepositories(ctx, owner, r); err != nil {
			return err
		}
	}
	if running.Role == config.RoleGateway {
		Nodes(ctx, s.Ask, r)
	}
	if running.PID != 0 {
		Origins(ctx, s.Ask, running.Role.OwnsRepositories(), r)
	}
	Limits(running.PID, r)
	examineCertificates(cfg, s.Role, r)
	clockDir := cfg.State
	if _, err := os.Stat(clockDir); err != nil {
		clockDir = cfg.Root
	}
	Clock(clockDir, r)
	Disk(map[string]string{"root": cfg.Root, "state": cfg.State, "cache": cfg.Cache.Dir}, r)
	return nil
}

// examineConfig reports the mistakes that config check finds.
func (s *Server) examineConfig(ctx context.Context, r *Report) {
	role := cmp.Or(s.Running.Role, s.Role)
	src := config.FromFile(role, s.File, s.Getenv)
	cfg, f := src.Inspect(true)
	if !f.Fatal() {
		cfg.Warnings(ctx, role, false, f)
	}
	f.Sort()
	for _, m := range f.All {
		severity := Problem
		if m.Warning {
			severity = Hint
		}
		if m.IsOfCertificate() { // reported in the group of certificates
			continue
		}
		one := *m
		one.Warning = false
		r.Add(Finding{Group: GroupConfiguration, Severity: severity, Kind: "configuration", Subject: m.Key,
			Text: one.Error(), Advice: "correct " + s.File})
	}
	if len(f.All) == 0 {
		r.Fact(GroupConfiguration, s.File+" is good")
	}
}

// userOf returns the user of a server: the owner of the state directory, or else of the root.
func userOf(cfg *config.Config) User {
	o := statedir.Self()
	for _, dir := range []string{cfg.State, cfg.Root} {
		if found, err := statedir.OwnerOf(dir); dir != "" && err == nil {
			o = found
			break
		}
	}
	u := User{UID: o.Uid, Groups: []int{o.Gid}, Name: o.Name()}
	if known, err := user.LookupId(strconv.Itoa(o.Uid)); err == nil {
		u.Login = known.Username
		ids, _ := known.GroupIds()
		for _, id := range append(ids, known.Gid) {
			if n, err := strconv.Atoi(id); err == nil {
				u.Groups = append(u.Groups, n)
			}
		}
	}
	return u
}

// examineState reports files in the state directory that the user of the server cannot use, because root created them,
// and secrets that others can read.
func examineState(cfg *config.Config, u User, r *Report) {
	entries, err := os.ReadDir(cfg.State)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		r.Fact(GroupServer, "this user cannot read its state directory")
		return
	}
	if f, err := statedir.ReadFormat(cfg.State); err != nil {
		r.Add(Finding{Group: GroupServer, Severity: Problem, Kind: "state-format", Subject: cfg.State, Text: err.Error(),
			Advice: "see docs/reference/compatibility.md"})
	} else if f.Version != "" {
		r.Fact(GroupServer, fmt.Sprintf("its state directory has format %d of packhorse %s", f.Format, f.Version))
	}
	if euid := os.Geteuid(); cfg.Auth.Tokens != "" && (euid == 0 || euid == u.UID) {
		if err := auth.NewTokenFile(cfg.Auth.Tokens).Check(false); err != nil {
			r.Add(Finding{Group: GroupServer, Severity: Problem, Kind: "tokens", Subject: cfg.Auth.Tokens,
				Text:   err.Error(),
				Advice: "put the file back from a backup before the server is restarted (docs/how-to/runbook.md)"})
		}
	}
	for _, e := range entries {
		path := cfg.State + "/" + e.Name()
		found, err := statedir.OwnerOf(path)
		info, errOfInfo := e.Info()
		if err != nil || errOfInfo != nil {
			continue
		}
		if u.UID != 0 && found.Uid != u.UID {
			r.Add(Finding{Group: GroupServer, Severity: Problem, Kind: "state-owner", Subject: path,
				Text:   fmt.Sprintf("it belongs to %s, and the server runs as %s", found.Name(), u.Name),
				Advice: u.Chown(path)})
		}
		if secret := e.Name() == "tokens" || e.Name() == "ssh"; secret && info.Mode().Perm()&0o077 != 0 {
			r.Add(Finding{Group: GroupServer, Severity: Problem, Kind: "state-mode", Subject: path,
				Text:   fmt.Sprintf("others can read it (mode %04o)", info.Mode().Perm()),
				Advice: "chmod -R go-rwx " + path})
		}
	}
}

// examineSearch reports that packhorse-search is missing. With a configuration, examineConfig does.
func (s *Server) examineSearch(r *Report) {
	if !s.Config.Search.Enabled || s.File != "" {
		return
	}
	server, _ := os.Executable() // if it is unknown, PATH is left
	if _, err := config.FindSearchProgram(config.RoleServe, server); err != nil {
		r.Add(Finding{Group: GroupServer, Severity: Problem, Kind: "search-missing",
			Text: "code search does not start: " + err.Error(), Advice: "install packhorse-search beside packhorse"})
	}
}

// examineBackup reports that a backup of the root alone has no tokens and keys.
func examineBackup(cfg *config.Config, r *Report) {
	if _, err := os.Stat(cfg.State); err == nil && cfg.Root != "" && !disk.Below(cfg.Root, cfg.State) {
		r.Add(Finding{Group: GroupServer, Severity: Hint, Kind: "state-elsewhere", Subject: cfg.State,
			Text:   "access tokens, SSH host keys and the key of LFS tokens are not below " + cfg.Root,
			Advice: "back up this directory as well as the root (docs/how-to/backup.md)"})
	}
}

// closeLimit is the maximum time for git processes to end.
const closeLimit = 5 * time.Second

// examineRepositories examines the repositories, and shows its progress on a terminal.
func (s *Server) examineRepositories(ctx context.Context, u User, r *Report) error {
	cfg := &s.Config
	runner, err := process.New(process.Options{Git: cfg.Git.Program, Log: slog.New(slog.DiscardHandler),
		Classes: map[process.Class]process.Limits{repo.ClassRefs: config.RefsLimits(),
			ClassDeep: {Slots: runtime.GOMAXPROCS(0), Queue: 1 << 10, Wait: 24 * time.Hour, Time: 24 * time.Hour}}})
	if err != nil {
		return err
	}
	defer func() {
		limit, cancel := context.WithTimeout(context.Background(), closeLimit)
		defer cancel()
		_ = runner.Close(limit)
	}()
	o := RepositoryOptions{
		Root: cfg.Root, User: u, Hooks: cfg.Push.HookPolicy(), Mirror: checkMirror(cfg),
		Open: repo.Options{Root: cfg.Root, Hidden: cfg.Hidden(), Policy: cfg.Fetch.Policy(), Tables: repo.NewTables(runner)},
	}
	if s.Progress != nil {
		var mu sync.Mutex
		var shown time.Time
		o.Progress = func(done int) {
			mu.Lock()
			defer mu.Unlock()
			if time.Since(shown) > 200*time.Millisecond {
				shown = time.Now()
				fmt.Fprintf(s.Progress, "\r%d repositories\x1b[K", done)
			}
		}
		defer fmt.Fprint(s.Progress, "\r\x1b[K")
	}
	if s.Deep {
		o.Deep = runner
	}
	seen := map[string]bool{}
	n, err := Repositories(ctx, cfg.RepositoriesBelow(ctx, func(path, why string) {
		if seen[path] {
			return
		}
		seen[path] = true
		r.Add(Finding{Group: GroupRepositories, Severity: Problem, Kind: "not-served", Subject: path,
			Text:   "it looks like a repository and is not served: " + why,
			Advice: "repair or rename it, or move it out of the root"})
	}), o, r)
	r.Fact(GroupRepositories, fmt.Sprintf("%d below %s", n, cfg.Root))
	if err != nil && ctx.Err() == nil {
		r.Add(Finding{Group: GroupRepositories, Severity: Problem, Kind: "list", Subject: cfg.Root,
			Text:   "cannot list all repositories: " + err.Error(),
			Advice: "if permission is denied, run doctor as root or as the user of the server"})
		err = nil
	}
	return err
}

// checkMirror returns the function for RepositoryOptions.Mirror.
func checkMirror(cfg *config.Config) func(path, dir string) error {
	var rules []mirror.Rule
	for i := range cfg.Mirror {
		c := &cfg.Mirror[i]
		u, err := c.URL()
		allowed, invalid := c.Allowed()
		if err == nil && invalid == nil { // otherwise the configuration is refused
			rules = append(rules, mirror.Rule{Prefix: c.To, URL: u, Allowed: allowed, FoldCase: c.FoldCase})
		}
	}
	return func(path, dir string) error {
		marks, err := places.FindMirrorMarks(dir, repo.Options{Root: cfg.Root})
		if err != nil || !marks.Any() { // doctor reports the error
			return nil
		}
		name, err := git.ParseRepoPath(path)
		if err != nil {
			return err
		}
		return mirror.Check(rules, name, marks)
	}
}

func examineCertificates(cfg *config.Config, role config.Role, r *Report) {
	for _, c := range cfg.Certificates(role) {
		add := func(text string) {
			r.Add(Finding{Group: GroupCertificates, Severity: Problem, Kind: "certificate", Subject: c.File,
				Text:   text,
				Advice: "renew the certificate; a running server loads it without a restart"})
		}
		leaf, err := config.ReadLeaf(c.File)
		if err != nil {
			add(err.Error())
			continue
		}
		r.Fact(GroupCertificates, fmt.Sprintf("%s until %s", config.PlainKey(c.Key),
			leaf.NotAfter.UTC().Format(time.DateOnly)))
		if text := config.Validity(leaf, time.Now()); text != "" {
			add(text)
		}
	}
}

package command

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
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/operations/doctor"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/server/cli"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/roles"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
	"github.com/packhorse-git/packhorse/internal/store"
)

// errProblems is the error of doctor after a report with problems.
var errProblems = errors.New("there are problems")

func doctorCommand(env Env) *cobra.Command {
	d := &examiner{target: target{env: env}}
	cmd := &cobra.Command{
		Use:   "doctor [ROOT]",
		Short: "Report problems of a server, its machine and its repositories",
		Long: `Doctor examines the repositories below ROOT and the machine, and reports problems with their remedies. The server may
run or not. With --config it also checks the configuration.

Repositories: owners and modes, hooks that would not run, invalid configurations, HEADs without a branch, missing
alternates, damaged packs, refs without objects, missing indexes. Directories that look like repositories and are not
served. With --deep, git looks for each object that a ref reaches. Machine: version of Git, limits, certificates, clock, disks, control groups.

Store: its ID, whether it can be reached, whether the object storage keeps its promises, and the space of the local
copies. Nodes of a running gateway: whether they are up, their stores, and whether pushes to them are refused. Origins of
a running server: whether they get requests, and which mirrors fail.

Doctor changes nothing, but it writes a few objects below probe/ in a store and removes them. It exits with 1 if there
are problems; hints do not count. Run it as root or as the user of the server, so that it can read all files.`,
		Example: `  packhorse doctor /srv/git
  packhorse doctor --config /etc/packhorse.toml
  packhorse doctor /srv/git --json | jq '.findings[] | select(.severity == "problem")'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && d.root != "" {
				return fmt.Errorf("%s takes one ROOT, got %d arguments", cmd.CommandPath(), len(args))
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	d.addFlags(cmd.Flags(), "the server's state directory, `DIR` (default what the last server on the root used)")
	cmd.Flags().BoolVar(&d.deep, "deep", false, "look for missing objects in all repositories, which takes long")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			d.root = args[0]
		}
		if d.root == "" && d.config == "" && d.state == "" {
			return usage(errors.New("which server? name its repositories, as in packhorse doctor /srv/git, or its --config " +
				"FILE or --state DIR"))
		}
		report, err := d.examine(cmd.Context(), cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		write := writeReport
		if *asJSON {
			write = writeReportJSON
		}
		if err := write(cmd.OutOrStdout(), report); err != nil {
			return err
		}
		if report.Problems() > 0 {
			return errProblems
		}
		return nil
	}
	return cmd
}

// examiner collects the findings of doctor.
type examiner struct {
	target
	deep bool // look for all objects of the repositories
}

func (d *examiner) examine(ctx context.Context, progress io.Writer) (*doctor.Report, error) {
	r := &doctor.Report{}
	running := d.useConfigOfServer(r)
	cfg, err := d.load()
	var wrong *config.Mistake
	switch {
	case errors.As(err, &wrong): // in the file: it is reported, and the rest is examined
		cfg.Root, cfg.State = cmp.Or(d.root, cfg.Root), cmp.Or(d.state, cfg.State)
	case err != nil:
		return nil, err
	}
	role := config.RoleServe
	if cfg.Root == "" && !cfg.Store.Enabled() {
		role = config.RoleGateway
	}
	cfg.Complete(role, d.env.Getenv)
	if running.PID == 0 {
		running, _ = statedir.Running(cfg.State)
	}
	if d.config != "" {
		d.examineConfig(ctx, cmp.Or(running.Role, role), r)
	}
	switch {
	case running.PID != 0:
		r.Fact(doctor.GroupServer, running.Describe())
	case cfg.State == "":
		r.Fact(doctor.GroupServer, "not found: neither flags nor the configuration name its root or its state directory")
	default:
		r.Fact(doctor.GroupServer, "not running with the state directory "+cfg.State)
	}
	user := userOf(&cfg)
	if cfg.State != "" {
		r.Fact(doctor.GroupServer, "its files are "+user.Name+"'s")
	}
	examineState(&cfg, user, r)
	if role == config.RoleServe {
		if running.PID == 0 || running.Role.IsServe() {
			d.examineSearch(&cfg, r)
		}
		examineBackup(&cfg, r)
		doctor.Git(ctx, cfg.Git.Program, r)
		if isCache, _ := store.IsCache(cfg.Root); isCache || cfg.Store.Enabled() { // the copies belong to the server alone
			examineStore(ctx, &cfg, r)
		} else if err := d.examineRepositories(ctx, &cfg, user, progress, r); err != nil {
			return nil, err
		}
	}
	if running.Role == config.RoleGateway {
		examineNodes(ctx, config.AdminSocket(cfg.State), r)
	}
	if running.PID != 0 {
		examineOrigins(ctx, config.AdminSocket(cfg.State), running.Role.OwnsRepositories(), r)
	}
	doctor.Limits(running.PID, r)
	examineCertificates(&cfg, role, r)
	clockDir := cfg.State
	if _, err := os.Stat(clockDir); err != nil {
		clockDir = cfg.Root
	}
	doctor.Clock(clockDir, r)
	doctor.Disk(map[string]string{"root": cfg.Root, "state": cfg.State, "cache": cfg.Cache.Dir}, r)
	r.Sort()
	return r, nil
}

// useConfigOfServer selects the configuration file of the running server, unless --config names one. It returns the
// zero value if no server runs.
func (d *examiner) useConfigOfServer(r *doctor.Report) statedir.Server {
	if d.config != "" {
		return statedir.Server{}
	}
	cfg, err := d.load()
	if err != nil {
		return statedir.Server{}
	}
	running, err := statedir.Running(cfg.State)
	switch {
	case err != nil:
		r.Fact(doctor.GroupConfiguration, "unknown, so the defaults are assumed; name the file with --config FILE")
		return statedir.Server{}
	case running.Config == "":
		return running
	}
	file, err := statedir.TrustedFile(running.Config)
	if err == nil {
		err = unix.Access(file, unix.R_OK)
	}
	if err != nil {
		r.Fact(doctor.GroupConfiguration,
			fmt.Sprintf("the server's file %s was not read, so the defaults are assumed; name it with --config FILE to use "+
				"it: %v", running.Config, err))
		return running
	}
	d.config, d.root, d.state = file, cfg.Root, cfg.State
	return running
}

// examineConfig reports the mistakes that config check finds.
func (d *examiner) examineConfig(ctx context.Context, role config.Role, r *doctor.Report) {
	src := config.FromFile(role, d.config, d.env.Getenv)
	cfg, f := src.Inspect(true)
	if !f.Fatal() {
		cfg.Warnings(ctx, role, false, f)
	}
	f.Sort()
	for _, m := range f.All {
		severity := doctor.Problem
		if m.Warning {
			severity = doctor.Hint
		}
		if m.IsOfCertificate() { // reported in the group of certificates
			continue
		}
		one := *m
		one.Warning = false
		r.Add(doctor.Finding{Group: doctor.GroupConfiguration, Severity: severity, Kind: "configuration", Subject: m.Key,
			Text: one.Error(), Advice: "correct " + d.config})
	}
	if len(f.All) == 0 {
		r.Fact(doctor.GroupConfiguration, d.config+" is good")
	}
}

// userOf returns the user of a server: the owner of the state directory, or else of the root.
func userOf(cfg *config.Config) doctor.User {
	o := statedir.Self()
	for _, dir := range []string{cfg.State, cfg.Root} {
		if found, err := statedir.OwnerOf(dir); dir != "" && err == nil {
			o = found
			break
		}
	}
	u := doctor.User{UID: o.Uid, Groups: []int{o.Gid}, Name: o.Name()}
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
func examineState(cfg *config.Config, u doctor.User, r *doctor.Report) {
	entries, err := os.ReadDir(cfg.State)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		r.Fact(doctor.GroupServer, "this user cannot read its state directory")
		return
	}
	if euid := os.Geteuid(); cfg.Auth.Tokens != "" && (euid == 0 || euid == u.UID) {
		if err := auth.NewTokenFile(cfg.Auth.Tokens).Check(false); err != nil {
			r.Add(doctor.Finding{Group: doctor.GroupServer, Severity: doctor.Problem, Kind: "tokens", Subject: cfg.Auth.Tokens,
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
			r.Add(doctor.Finding{Group: doctor.GroupServer, Severity: doctor.Problem, Kind: "state-owner", Subject: path,
				Text:   fmt.Sprintf("it belongs to %s, and the server runs as %s", found.Name(), u.Name),
				Advice: u.Chown(path)})
		}
		if secret := e.Name() == "tokens" || e.Name() == "ssh"; secret && info.Mode().Perm()&0o077 != 0 {
			r.Add(doctor.Finding{Group: doctor.GroupServer, Severity: doctor.Problem, Kind: "state-mode", Subject: path,
				Text:   fmt.Sprintf("others can read it (mode %04o)", info.Mode().Perm()),
				Advice: "chmod -R go-rwx " + path})
		}
	}
}

// examineSearch reports that packhorse-search is missing. With a configuration, examineConfig does.
func (d *examiner) examineSearch(cfg *config.Config, r *doctor.Report) {
	server, _ := os.Executable() // if it is unknown, PATH is left
	if _, err := config.FindSearchProgram(config.RoleServe, server); err != nil && cfg.Search.Enabled && d.config == "" {
		r.Add(doctor.Finding{Group: doctor.GroupServer, Severity: doctor.Problem, Kind: "search-missing",
			Text: "a server does not start: " + err.Error(), Advice: "install packhorse-search beside packhorse"})
	}
}

// examineBackup reports that a backup of the root alone has no tokens and keys.
func examineBackup(cfg *config.Config, r *doctor.Report) {
	if _, err := os.Stat(cfg.State); err == nil && cfg.Root != "" && !disk.Below(cfg.Root, cfg.State) {
		r.Add(doctor.Finding{Group: doctor.GroupServer, Severity: doctor.Hint, Kind: "state-elsewhere", Subject: cfg.State,
			Text:   "access tokens, SSH host keys and the key of LFS tokens are not below " + cfg.Root,
			Advice: "back up this directory as well as the root (docs/how-to/backup.md)"})
	}
}

// examineRepositories examines the repositories, and shows its progress on a terminal.
func (d *examiner) examineRepositories(ctx context.Context, cfg *config.Config, u doctor.User, progress io.Writer,
	r *doctor.Report) error {
	runner, err := process.New(process.Options{Git: cfg.Git.Program, Log: slog.New(slog.DiscardHandler),
		Classes: map[process.Class]process.Limits{repo.ClassRefs: config.RefsLimits(),
			doctor.ClassDeep: {Slots: runtime.GOMAXPROCS(0), Queue: 1 << 10, Wait: 24 * time.Hour, Time: 24 * time.Hour}}})
	if err != nil {
		return err
	}
	defer func() {
		limit, cancel := context.WithTimeout(context.Background(), roles.CloseLimit)
		defer cancel()
		_ = runner.Close(limit)
	}()
	o := doctor.RepositoryOptions{
		Root: cfg.Root, User: u, Hooks: doctor.Hooks(cfg.Push.HookPolicy()), Mirror: checkMirror(cfg),
		Open: repo.Options{Root: cfg.Root, Hidden: cfg.Hidden(), Policy: cfg.Fetch.Policy(), Tables: repo.NewTables(runner)},
	}
	if observe.IsTerminal(progress) {
		var mu sync.Mutex
		var shown time.Time
		o.Progress = func(done int) {
			mu.Lock()
			defer mu.Unlock()
			if time.Since(shown) > 200*time.Millisecond {
				shown = time.Now()
				fmt.Fprintf(progress, "\r%d repositories\x1b[K", done)
			}
		}
		defer fmt.Fprint(progress, "\r\x1b[K")
	}
	if d.deep {
		o.Deep = runner
	}
	seen := map[string]bool{}
	n, err := doctor.Repositories(ctx, cfg.RepositoriesBelow(ctx, func(path, why string) {
		if seen[path] {
			return
		}
		seen[path] = true
		r.Add(doctor.Finding{Group: doctor.GroupRepositories, Severity: doctor.Problem, Kind: "not-served", Subject: path,
			Text:   "it looks like a repository and is not served: " + why,
			Advice: "repair or rename it, or move it out of the root"})
	}), o, r)
	r.Fact(doctor.GroupRepositories, fmt.Sprintf("%d below %s", n, cfg.Root))
	if err != nil && ctx.Err() == nil {
		r.Add(doctor.Finding{Group: doctor.GroupRepositories, Severity: doctor.Problem, Kind: "list", Subject: cfg.Root,
			Text:   "cannot list all repositories: " + err.Error(),
			Advice: "if permission is denied, run doctor as root or as the user of the server"})
		err = nil
	}
	return err
}

// checkMirror returns the function for doctor.RepositoryOptions.Mirror.
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
		marks, err := storage.FindMirrorMarks(dir, repo.Options{Root: cfg.Root})
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

func examineCertificates(cfg *config.Config, role config.Role, r *doctor.Report) {
	for _, c := range cfg.Certificates(role) {
		add := func(text string) {
			r.Add(doctor.Finding{Group: doctor.GroupCertificates, Severity: doctor.Problem, Kind: "certificate", Subject: c.File,
				Text:   text,
				Advice: "renew the certificate; a running server loads it without a restart"})
		}
		leaf, err := config.ReadLeaf(c.File)
		if err != nil {
			add(err.Error())
			continue
		}
		r.Fact(doctor.GroupCertificates, fmt.Sprintf("%s until %s", config.PlainKey(c.Key),
			leaf.NotAfter.UTC().Format(time.DateOnly)))
		if text := config.Validity(leaf, time.Now()); text != "" {
			add(text)
		}
	}
}

// mostOfAKind is the maximum number of shown findings of one kind; --json shows all.
const mostOfAKind = 20

func writeReport(w io.Writer, r *doctor.Report) error {
	for _, group := range doctor.Groups {
		of := slices.DeleteFunc(slices.Clone(r.Findings), func(f doctor.Finding) bool { return f.Group != group })
		fact := r.Facts[group]
		if len(of) == 0 && fact == "" {
			continue
		}
		head := group
		if fact != "" {
			head += ": " + cli.Printable(fact)
		}
		if _, err := fmt.Fprintln(w, head); err != nil {
			return err
		}
		kinds := map[string]int{}
		for _, f := range of {
			if kinds[f.Kind]++; kinds[f.Kind] > mostOfAKind {
				continue
			}
			subject := ""
			if f.Subject != "" && group != doctor.GroupConfiguration {
				subject = f.Subject + ": "
			}
			fmt.Fprintf(w, "  %-7s  %s\n           -> %s\n", f.Severity, cli.Printable(subject+f.Text), cli.Printable(f.Advice))
		}
		for _, f := range of {
			if more := kinds[f.Kind] - mostOfAKind; more > 0 {
				fmt.Fprintf(w, "  and %d more of the kind %s; --json shows all\n", more, f.Kind)
				kinds[f.Kind] = 0
			}
		}
	}
	problems := r.Problems()
	hints := len(r.Findings) - problems
	_, err := fmt.Fprintf(w, "\n%s, %s\n", counted(problems, "problem"), counted(hints, "hint"))
	return err
}

func counted(n int, what string) string {
	switch n {
	case 0:
		return "no " + what + "s"
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func writeReportJSON(w io.Writer, r *doctor.Report) error {
	return encodeJSON(w, struct {
		Good     bool              `json:"good"`
		Facts    map[string]string `json:"facts"`
		Findings []doctor.Finding  `json:"findings"`
	}{r.Problems() == 0, r.Facts, append([]doctor.Finding{}, r.Findings...)})
}

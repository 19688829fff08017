package command

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/operations/doctor"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/roles"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// demoStream is the repository of a demo, as input of git fast-import.
//
//go:embed demo.stream
var demoStream string

// demoPrefix begins the names of the directories of demos, which are in that for temporary files. Each has the file
// demoMark.
const (
	demoPrefix = "packhorse-demo-"
	demoMark   = "made-by-packhorse-demo"
)

// demo is a server with a repository in a temporary directory.
type demo struct {
	env   Env
	dir   string
	token string
	cfg   config.Config
	opens bool // a browser shows the repository
}

func demoCommand(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Serve a small repository for a first look",
		Long: `Demo makes a repository in a temporary directory, serves it on a free port of this machine, and prints what to try: its
pages, a clone, a push, and searches. On a desktop it opens the page of the repository in the browser.

Ctrl-C ends the demo and removes its directory. Other files of this machine and git's configuration are not changed. It
needs git, and no network.`,
		Example: `  packhorse demo
  packhorse demo --http 127.0.0.1:8080 --no-open`,
		Args: noArgs,
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	src := config.AddFlags(flags, config.RoleServe, env.Getenv)
	for name, value := range map[string]string{"http": "127.0.0.1:0", "ops": "127.0.0.1:0", "log-level": "warn",
		"shutdown-grace": "1s", "public-read": "true"} {
		_ = flags.Set(name, value) // these are valid
	}
	for _, name := range []string{"http", "ops", "ssh", "git", "log-level"} {
		flag := flags.Lookup(name)
		flag.DefValue = flag.Value.String()
		cmd.Flags().AddFlag(flag)
	}
	noOpen := cmd.Flags().Bool("no-open", false, "do not open the page of the repository in a browser")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		// Until the directory is removed, further signals do not end the process, nor do writes to a closed pipe.
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		pipes := make(chan os.Signal, 1)
		signal.Notify(pipes, syscall.SIGPIPE)
		defer signal.Stop(pipes)
		dir, remove, err := makeDemoDir()
		if remove == nil {
			return err
		}
		defer func() {
			if err = errors.Join(err, remove()); err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "\nThe demo has ended, and %s is removed.\n", dir)
			}
		}()
		if err != nil {
			return err
		}
		_ = flags.Set("root", dir)
		d := demo{env: env, dir: dir, opens: !*noOpen && hasBrowser(env, cmd)}
		if d.cfg, err = src.LoadChecked(); err != nil {
			return usage(err)
		}
		if err := d.prepare(ctx); err != nil {
			return err
		}
		p := env.process()
		p.Hangups = nil
		p.Started = func(s statedir.Server) error { return d.introduce(cmd, s) }
		return roles.Run(ctx, p, src, d.cfg)
	}
	return cmd
}

// makeDemoDir creates the directory of a demo, which is locked until remove is called. It removes the directories of
// this user's demos that were killed.
func makeDemoDir() (dir string, remove func() error, err error) {
	lock := func(dir string) (*os.File, error) {
		f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err == nil {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
		return f, err
	}
	entries, _ := os.ReadDir(os.TempDir()) // if it cannot be read, the directory cannot be made either
	for _, e := range entries {
		old := filepath.Join(os.TempDir(), e.Name())
		_, err := os.Lstat(filepath.Join(old, demoMark))
		owner, _ := statedir.OwnerOf(old)
		if err != nil || !strings.HasPrefix(e.Name(), demoPrefix) || owner.Uid != os.Geteuid() {
			continue
		}
		f, err := lock(old)
		if err == nil {
			_ = os.RemoveAll(old) // it stays for the next demo
		}
		f.Close()
	}
	if dir, err = os.MkdirTemp("", demoPrefix); err != nil {
		return "", nil, fmt.Errorf("make the directory of the demo: %w", err)
	}
	held, err := lock(dir)
	if err == nil { // other demos leave it alone until then
		err = os.WriteFile(filepath.Join(dir, demoMark), nil, 0o600)
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), held.Close()) }, err
}

// hasBrowser reports whether the user is likely to have one.
func hasBrowser(env Env, cmd *cobra.Command) bool {
	return observe.IsTerminal(cmd.OutOrStdout()) &&
		(runtime.GOOS == "darwin" || env.Getenv("DISPLAY") != "" || env.Getenv("WAYLAND_DISPLAY") != "")
}

// prepare makes the repository and an access token.
func (d *demo) prepare(ctx context.Context) error {
	program := d.cfg.Git.Program
	if v, _, err := process.VersionOf(ctx, program); err != nil {
		return err
	} else if err := doctor.TooOld(program, v); err != nil {
		return usage(err)
	}
	repository := filepath.Join(d.dir, "demo.git")
	for _, args := range [][]string{
		{"init", "--quiet", "--bare", "--template=", "--initial-branch=main", repository},
		{"-c", "fastimport.unpackLimit=1", "--git-dir", repository, "fast-import", "--quiet"},
	} {
		git := exec.CommandContext(ctx, program, args...)
		git.Env = []string{"PATH=" + d.env.Getenv("PATH"), "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
		git.Stdin = strings.NewReader(demoStream)
		if out, err := git.CombinedOutput(); err != nil {
			return fmt.Errorf("make the repository of the demo: %s: %w: %.500s", program, err, out)
		}
	}
	file := filepath.Join(repository, "description")
	if err := os.WriteFile(file, []byte("An invented project that computes tides\n"), 0o600); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Dir(d.cfg.Auth.Tokens), 0o700); err != nil {
		return err
	}
	tokens := &auth.Service{Access: auth.AccessInFile(auth.NewTokenFile(d.cfg.Auth.Tokens))}
	minted, err := tokens.Mint(ctx, connect.NewRequest(&packhorsev1.MintRequest{Name: "demo", Scope: "admin"}))
	if err == nil {
		d.token = minted.Msg.GetSecret()
	}
	return err
}

// introduce prints what to try. The token is in files, so that the command lines of processes do not have it.
func (d *demo) introduce(cmd *cobra.Command, s statedir.Server) error {
	server, err := url.Parse(s.HTTP)
	if err != nil {
		return err
	}
	server.User = url.UserPassword("demo", d.token)
	secret, settings := filepath.Join(d.dir, "credentials"), filepath.Join(d.dir, "client")
	text := fmt.Sprintf("[credential %q]\n\thelper =\n\thelper = %q\n[user]\n\tname = Demo\n\temail = demo@example.org\n",
		s.HTTP, "store --file "+doctor.ShellWord(secret))
	if err := errors.Join(os.WriteFile(secret, []byte(server.String()+"\n"), 0o600),
		os.WriteFile(settings, []byte(text), 0o600)); err != nil {
		return err
	}
	search := ""
	if _, err := config.FindSearchProgram(config.RoleServe, d.env.Program); err != nil {
		search = "\n           when packhorse-search is installed beside packhorse"
	}
	fmt.Fprintf(cmd.OutOrStdout(), `A Git server with a small repository, until you press Ctrl-C:

  pages    %[1]s/demo
  clone    git clone %[1]s/demo
  push     cd demo && git config include.path %[2]s
           date >now.txt && git add now.txt && git commit -m 'Add the time' && git push
  search   %[1]s/-/search?q=tide%[3]s
  sign in  %[1]s/-/sign-in with the token
           %[4]s
  status   %[1]s/-/status, when you have signed in

`, s.HTTP, doctor.ShellWord(settings), search, d.token)
	if d.opens {
		d.open(s.HTTP + "/demo")
	}
	return nil
}

// open opens a page in the browser, if that is possible. Ctrl-C does not end the browser.
func (d *demo) open(page string) {
	opener := "xdg-open"
	if runtime.GOOS == "darwin" {
		opener = "open"
	}
	browser := exec.Command(opener, page)
	browser.Env, browser.SysProcAttr = d.env.Environ, &syscall.SysProcAttr{Setsid: true}
	if browser.Start() == nil {
		go func() { _ = browser.Wait() }()
	}
}

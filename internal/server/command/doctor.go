package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/operations/doctor"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/server/cli"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
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

It examines the files of repositories, the version of Git, limits, certificates, clock and disks, the store, the nodes of
a running gateway, and the origins of mirrors. With --deep, it reads all packs, and git looks for each object that a ref
reaches.

Doctor changes nothing, but it writes a few objects below probe/ in a store and removes them. It exits with 1 if there
are problems; hints do not count. Run it as root or as the user of the server.`,
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
	cmd.Flags().BoolVar(&d.deep, "deep", false, "find damaged packs and missing objects, which takes long")
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
		err = printResult(cmd, *asJSON, struct {
			Good     bool              `json:"good"`
			Facts    map[string]string `json:"facts"`
			Findings []doctor.Finding  `json:"findings"`
		}{report.Problems() == 0, report.Facts, append([]doctor.Finding{}, report.Findings...)},
			func(w io.Writer) error { return writeReport(w, report) })
		if err == nil && report.Problems() > 0 {
			err = errProblems
		}
		return err
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
	server := doctor.Server{Config: cfg, Role: role, File: d.config, Running: running, Getenv: d.env.Getenv, Deep: d.deep,
		Ask: askerOf(config.AdminSocket(cfg.State))}
	if observe.IsTerminal(progress) {
		server.Progress = progress
	}
	if err := server.Examine(ctx, r); err != nil {
		return nil, err
	}
	r.Sort()
	return r, nil
}

// askerOf returns the function that asks a running process over its admin socket.
func askerOf(socket string) doctor.Ask {
	return func(ctx context.Context, what string, work internalv1.AdminWork, name string, v any) (known bool, err error) {
		ctx, cancel := context.WithTimeout(ctx, adminTimeout)
		defer cancel()
		err = withServer(what, socket, func(c *client.Client) error {
			return runAdmin(ctx, c, &internalv1.RunRequest{Work: work, Name: name}, nil, nil, v)
		})
		if connect.CodeOf(err) == connect.CodeNotFound {
			return false, nil
		}
		return true, answerOf(err)
	}
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
	running, file, err := runningConfig(cfg.State)
	switch {
	case running.PID == 0:
		r.Fact(doctor.GroupConfiguration, "unknown, so the defaults are assumed; name the file with --config FILE")
	case err != nil:
		r.Fact(doctor.GroupConfiguration,
			fmt.Sprintf("the server's file %s was not read, so the defaults are assumed; name it with --config FILE to use "+
				"it: %v", running.Config, err))
	case file != "":
		d.config, d.root, d.state = file, cfg.Root, cfg.State
	}
	return running
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
	if n == 0 {
		return "no " + what + "s"
	}
	return english.Plural(n, what, "")
}

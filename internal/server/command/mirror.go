package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

func mirrorCommand(env Env) *cobra.Command {
	cmd := roleCommand(config.RoleMirror, env, &cobra.Command{
		Short: "Serve mirrors of the repositories of other Git hosts",
		Long: `Mirror serves the repositories of other Git hosts, the origins. The first clone of a repository creates its mirror. Each
later clone or fetch asks the origin for changes and copies only new objects, so many clients cost the origin one request.
The origin decides about each client by the client's own credential, which is not stored. Pushes go to the origin.

The mirror of https://github.com/acme/app is http://THIS-HOST:8080/github.com/acme/app. Clients need one line of
configuration, see the examples. "packhorse serve" and "packhorse storage" keep mirrors, too, if their configuration has
[[mirror]] tables.

` + signalsHelp,
		Example: `  packhorse mirror --origin https://github.com
  git config --global url."http://packhorse:8080/github.com/".insteadOf https://github.com/

  packhorse mirror --origin https://github.com --origin https://gitlab.com --http 127.0.0.1:8080
  packhorse mirror --config /etc/packhorse.toml         # with [[mirror]] tables
  packhorse mirror list`,
	})
	cmd.AddCommand(mirrorAdd(env), mirrorList(env), mirrorStatus(env), mirrorRefresh(env), mirrorRemove(env),
		mirrorDetach(env))
	return cmd
}

// mirrorClient has work on mirrors done by a running server.
type mirrorClient struct{ adminClient }

func newMirrorClient(env Env, cmd *cobra.Command) *mirrorClient {
	c := &mirrorClient{adminClient{target{env: env}, config.RoleMirror, "server"}}
	c.addFlags(cmd, "the server's state directory, `DIR` (default that of the last \"packhorse mirror\" without --root)")
	return c
}

// act does work on one mirror.
func (c *mirrorClient) act(ctx context.Context, work internalv1.AdminWork, path string) (s mirror.Status, err error) {
	return s, c.run(ctx, work, path, &s)
}

// list returns all mirrors.
func (c *mirrorClient) list(ctx context.Context) ([]mirror.Status, error) {
	all := []mirror.Status{}
	for after := ""; ; {
		var part mirror.ListResult
		if err := c.run(ctx, internalv1.AdminWork_ADMIN_WORK_MIRRORS, after, &part); err != nil {
			return nil, err
		}
		all = append(all, part.Mirrors...)
		if after = part.Next; after == "" {
			return all, nil
		}
	}
}

// onMirrors completes a command that does one thing to each mirror in its arguments. It goes on after a failure and
// reports all of them.
func onMirrors(env Env, cmd *cobra.Command, do func(context.Context, *mirrorClient, string) (mirror.Status, error),
	done func(mirror.Status) string) *cobra.Command {
	client := newMirrorClient(env, cmd)
	asJSON := jsonFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fmt.Errorf("%s needs the PATH of a mirror, as in github.com/acme/app, or its URL at the origin",
				cmd.CommandPath())
		}
		return nil
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		list, _ := client.list(cmd.Context()) // without a server there are no completions
		for _, s := range list {
			names = append(names, s.Path)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var failed []error
		all := []mirror.Status{}
		for _, path := range args {
			s, err := do(cmd.Context(), client, path)
			if err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", path, err))
				continue
			}
			if all = append(all, s); !*asJSON {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", s.Path, done(s))
			}
		}
		if *asJSON {
			failed = append(failed, encodeJSON(cmd.OutOrStdout(), all))
		}
		return errors.Join(failed...)
	}
	return cmd
}

func mirrorAdd(env Env) *cobra.Command {
	background := false
	cmd := &cobra.Command{
		Use: "add PATH...", Short: "Create mirrors before their first use",
		Long: `Add creates a mirror and waits until it is complete. On a terminal it shows the progress. If the command is interrupted,
the server goes on. The origin gets the mirror's own credential (token_file and others in the [[mirror]] table), so a
private repository needs one. A mirror that exists is not changed.`,
		Example: `  packhorse mirror add github.com/acme/app
  packhorse mirror add https://github.com/acme/app https://github.com/acme/tool --background`,
	}
	cmd.Flags().BoolVar(&background, "background", false, "do not wait until the mirror is complete")
	return onMirrors(env, cmd, func(ctx context.Context, c *mirrorClient, path string) (mirror.Status, error) {
		s, err := c.act(ctx, internalv1.AdminWork_ADMIN_WORK_MIRROR_ADD, path)
		if err != nil || background {
			return s, err
		}
		return c.untilComplete(ctx, s)
	}, stateOf)
}

func mirrorRefresh(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "refresh PATH...", Short: "Update mirrors from their origins now",
		Long: `Refresh asks the origin for changes and waits until the mirror has them. Fetches do the same by themselves, so it is for
mirrors with fresh = "webhook" or a long duration, and for tests of an origin.`,
		Example: "  packhorse mirror refresh github.com/acme/app",
	}
	return onMirrors(env, cmd, func(ctx context.Context, c *mirrorClient, path string) (mirror.Status, error) {
		return c.act(ctx, internalv1.AdminWork_ADMIN_WORK_MIRROR_REFRESH, path)
	}, stateOf)
}

func mirrorRemove(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "remove PATH...", Short: "Delete mirrors",
		Long: `Remove deletes mirrors with their repositories. The origin is not changed. The next clone creates the mirror again,
unless the [[mirror]] table denies it or has first_use = false.`,
		Example: "  packhorse mirror remove github.com/acme/old",
	}
	return onMirrors(env, cmd, func(ctx context.Context, c *mirrorClient, path string) (mirror.Status, error) {
		return c.act(ctx, internalv1.AdminWork_ADMIN_WORK_MIRROR_REMOVE, path)
	}, func(mirror.Status) string { return "removed" })
}

func mirrorDetach(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "detach PATH...", Short: "Turn mirrors into ordinary repositories",
		Long: `Detach cuts the connection of a mirror to its origin. The repository stays at its path with all refs and objects, and
takes pushes itself. That is for the move of a repository from its origin to this server. Callers then need permission by
tokens or rules. Add the repository to deny of the [[mirror]] table if its path is still below that of a mirror.`,
		Example: "  packhorse mirror detach github.com/acme/app",
	}
	return onMirrors(env, cmd, func(ctx context.Context, c *mirrorClient, path string) (mirror.Status, error) {
		return c.act(ctx, internalv1.AdminWork_ADMIN_WORK_MIRROR_DETACH, path)
	}, func(mirror.Status) string { return "detached; it is an ordinary repository now" })
}

func mirrorList(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List mirrors",
		Long: `List shows each mirror with its state, the age of the origin's state that it has, and the last change of its refs.`,
		Example: `  packhorse mirror list
  packhorse mirror list --json --config /etc/packhorse.toml`,
		Args: noArgs,
	}
	client := newMirrorClient(env, cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		list, err := client.list(cmd.Context())
		if err != nil {
			return err
		}
		return printResult(cmd, *asJSON, list, func(w io.Writer) error { return writeMirrors(w, list, time.Now()) })
	}
	return cmd
}

func mirrorStatus(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status PATH", Short: "Show the state of a mirror",
		Long:    `Status shows the origin of a mirror, its state, and the cause of its last failure.`,
		Example: "  packhorse mirror status github.com/acme/app",
		Args:    exactArgs(1, "one PATH"),
	}
	client := newMirrorClient(env, cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := client.act(cmd.Context(), internalv1.AdminWork_ADMIN_WORK_MIRROR_STATUS, args[0])
		if err != nil {
			return err
		}
		return printResult(cmd, *asJSON, s, func(w io.Writer) error { return writeMirror(w, s, time.Now()) })
	}
	return cmd
}

// writeMirrors writes a table of mirrors.
func writeMirrors(w io.Writer, list []mirror.Status, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no mirrors yet: clone a repository through this server, or add one with packhorse mirror "+
			"add PATH")
		return err
	}
	table := newTable(w, "MIRROR\tSTATE\tCHECKED\tCHANGED")
	for _, s := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.Path, stateOf(s), ageOf(s.Fresh, now), ageOf(s.Updated, now))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, s := range list {
		if s.Error != "" {
			fmt.Fprintf(w, "%s: %s\n", s.Path, s.Error)
		}
	}
	return nil
}

// writeMirror writes the details of a mirror.
func writeMirror(w io.Writer, s mirror.Status, now time.Time) error {
	table := newTable(w, "")
	for _, line := range [][2]string{{"mirror", s.Path}, {"origin", s.Origin}, {"state", stateOf(s)},
		{"created", ageOf(s.Created, now)}, {"checked", ageOf(s.Fresh, now)}, {"changed", ageOf(s.Updated, now)},
		{"error", cmp.Or(s.Error, "none")}} {
		fmt.Fprintf(table, "%s\t%s\n", line[0], line[1])
	}
	return table.Flush()
}

// stateOf describes the state of a mirror in a few words.
func stateOf(s mirror.Status) string {
	var words []string
	switch {
	case s.Refused:
		words = append(words, "refused")
	case s.Orphan:
		words = append(words, "without a [[mirror]] table")
	case s.Complete:
		words = append(words, "complete")
	default:
		words = append(words, "incomplete")
	}
	if s.Updating {
		words = append(words, strings.TrimSpace("updating "+s.Progress))
	}
	if s.Error != "" && !s.Refused && !s.Orphan {
		words = append(words, "failed")
	}
	return strings.Join(words, ", ")
}

// ageOf returns the time since t, such as "3m ago".
func ageOf(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	d := max(now.Sub(t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	}
	return fmt.Sprintf("%dd ago", int(d.Hours())/24)
}

// pollMirror is the interval in which commands read the state of a mirror.
const pollMirror = 200 * time.Millisecond

// untilComplete waits until the first update of a mirror has ended. On a terminal it shows the progress.
func (c *mirrorClient) untilComplete(ctx context.Context, s mirror.Status) (mirror.Status, error) {
	path := s.Path
	show, end := terminalProgress(c.env.Stderr)
	defer end()
	for !s.Complete {
		if s.Error != "" && !s.Updating {
			return s, errors.New(s.Error)
		}
		show(path + ": " + cmp.Or(s.Progress, "waiting for the origin"))
		if err := retry.Sleep(ctx, pollMirror); err != nil {
			return s, errors.New("interrupted: the server goes on in the background")
		}
		var err error
		if s, err = c.act(ctx, internalv1.AdminWork_ADMIN_WORK_MIRROR_STATUS, path); err != nil {
			return s, err
		}
	}
	return s, nil
}

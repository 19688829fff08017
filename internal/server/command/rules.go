package command

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/server/config"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// withRules calls do with a client of the rules of a gateway.
func withRules(c *adminClient, do func(packhorsev1connect.RuleServiceClient) error) error {
	return c.with(func(server *client.Client) error {
		httpClient, url := server.HTTP()
		return answerOf(do(packhorsev1connect.NewRuleServiceClient(httpClient, url)))
	})
}

func rulesCommand(env Env) *cobra.Command {
	c := gatewayClient(env)
	cmd := &cobra.Command{
		Use:   "rules",
		Short: "Show, change and test the rules of a running server",
		Long: `Rules manages the rules of a running serve or gateway: those of its configuration, which come first, and those that
"packhorse rules set" stores. The stored ones are in STATE/tokens, or with auth.shared in the object store.`,
		Example: `  packhorse rules list --root /srv/git
  packhorse rules test alice team/app refs/heads/main --root /srv/git
  packhorse rules try rules.toml --log /var/log/packhorse.log --root /srv/git
  packhorse rules set rules.toml --root /srv/git`,
	}
	c.addFlags(cmd, stateUsage)
	return group(cmd, rulesList(c), rulesSet(c), rulesTest(c), rulesTry(c), rulesForget(c))
}

func rulesList(c *adminClient) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the rules in the order in which they apply", Args: noArgs,
		Long:    `List shows the rules of the configuration, and after them the stored ones. --json has the version and the groups, too.`,
		Example: "  packhorse rules list --root /srv/git",
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withRules(c, func(rules packhorsev1connect.RuleServiceClient) error {
			got, err := rules.Get(cmd.Context(), connect.NewRequest(&packhorsev1.RuleServiceGetRequest{}))
			if err != nil {
				return err
			}
			return printResult(cmd, *asJSON, got.Msg, func(w io.Writer) error {
				table := newTable(w, "RULE\tNAME\tWHO\tREPOSITORIES\tREFS\tMAY")
				for _, part := range []struct {
					label string
					set   *packhorsev1.RuleSet
				}{{"rule", got.Msg.GetConfigured()}, {"stored rule", got.Msg.GetStored()}} {
					for i, r := range part.set.GetRules() {
						fmt.Fprintf(table, "%s %d\t%s\t%s\t%s\t%s\t%s\n", part.label, i+1, r.GetName(),
							strings.Join(r.GetWho(), " "), strings.Join(r.GetRepositories(), " "), strings.Join(r.GetRefs(), " "),
							r.GetMay())
					}
				}
				return table.Flush()
			})
		})
	}
	return cmd
}

// readRules reads a file with tables [[auth.group]] and [[auth.rule]].
func readRules(file string) (*packhorsev1.RuleSet, auth.RuleSet, error) {
	cfg := config.DefaultConfig()
	if err := config.LoadFile(file, &cfg, config.Origins{}); err != nil {
		return nil, auth.RuleSet{}, usage(err)
	}
	set := cfg.Auth.RuleSet()
	_, err := set.Parse()
	return set.Message(), set, usage(err)
}

func rulesSet(c *adminClient) *cobra.Command {
	var expected uint64
	cmd := &cobra.Command{
		Use: "set FILE", Short: "Replace the stored rules", Args: exactArgs(1, "one FILE"),
		Long: `Set replaces the stored groups and rules by those of a file, which has the tables [[auth.group]] and [[auth.rule]] as in
the configuration. They apply to the next request. "packhorse rules try" shows before what would change.`,
		Example: "  packhorse rules set rules.toml --root /srv/git\n" +
			"  packhorse rules set rules.toml --version 7 --root /srv/git",
	}
	cmd.Flags().Uint64Var(&expected, "version", 0,
		"fail unless the stored rules have this `VERSION` (default the present one)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		set, _, err := readRules(args[0])
		if err != nil {
			return err
		}
		return withRules(c, func(rules packhorsev1connect.RuleServiceClient) error {
			if !cmd.Flags().Changed("version") {
				got, err := rules.Get(cmd.Context(), connect.NewRequest(&packhorsev1.RuleServiceGetRequest{}))
				if err != nil {
					return err
				}
				expected = got.Msg.GetVersion()
			}
			done, err := rules.Set(cmd.Context(), connect.NewRequest(&packhorsev1.RuleServiceSetRequest{Set: set,
				ExpectedVersion: expected}))
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "stored %d rules as version %d\n", len(set.GetRules()), done.Msg.GetVersion())
			}
			return err
		})
	}
	return cmd
}

func rulesTest(c *adminClient) *cobra.Command {
	cmd := &cobra.Command{
		Use: "test WHO PATH [REF]", Short: "Show what a caller may do, and the rules that decide",
		Args: cobra.RangeArgs(2, 3),
		Long: `Test shows the decisions of the rules about a caller as in rules (alice, token:ci, anonymous), a repository, and a ref.
Limits of the caller's credential, the auth hook and origins are not asked.`,
		Example: "  packhorse rules test alice team/app refs/heads/main --root /srv/git",
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request := &packhorsev1.RuleServiceTestRequest{Who: args[0], Path: args[1]}
		if len(args) > 2 {
			request.Ref = args[2]
		}
		return withRules(c, func(rules packhorsev1connect.RuleServiceClient) error {
			got, err := rules.Test(cmd.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return printResult(cmd, *asJSON, got.Msg, func(w io.Writer) error {
				table := newTable(w, "OPERATION\tDECISION\tBY")
				for _, d := range got.Msg.GetDecisions() {
					fmt.Fprintf(table, "%s\t%s\t%s\n", d.GetOperation(), decisionText(d), d.GetBy())
				}
				return table.Flush()
			})
		})
	}
	return cmd
}

func decisionText(d *packhorsev1.RuleDecision) string {
	if d.GetPermitted() {
		return "permitted"
	}
	return "refused"
}

func rulesForget(c *adminClient) *cobra.Command {
	return &cobra.Command{
		Use: "forget USER", Short: "Drop what gateways have cached about a user", Args: exactArgs(1, "one USER"),
		Long: `Forget has the auth hook and origins asked again at the next request of a user whose rights they have changed. This
gateway does so at once, and with auth.shared every other one within a second. Other users are asked again, too.`,
		Example: "  packhorse rules forget alice --root /srv/git",
		RunE: func(cmd *cobra.Command, args []string) error {
			return withRules(c, func(rules packhorsev1connect.RuleServiceClient) error {
				_, err := rules.Forget(cmd.Context(), connect.NewRequest(&packhorsev1.ForgetRequest{User: args[0]}))
				return err
			})
		},
	}
}

func rulesTry(c *adminClient) *cobra.Command {
	var log string
	cmd := &cobra.Command{
		Use: "try FILE --log LOG", Short: "Show which past pushes other rules would decide otherwise",
		Args: exactArgs(1, "one FILE"),
		Long: `Try compares the stored rules with those of a file. It reads changes of refs from a log of gateways, and prints
those that would be decided otherwise. LOG has the lines that serve or gateways write as JSON; "-" is the standard input.
A change of an existing ref counts as "write" and as "force", because the log does not have the difference.`,
		Example: "  packhorse rules try rules.toml --log /var/log/packhorse.log --root /srv/git\n" +
			"  journalctl -u packhorse -o cat | packhorse rules try rules.toml --log - --root /srv/git",
	}
	cmd.Flags().StringVar(&log, "log", "", "read past pushes from this `LOG`")
	_ = cmd.MarkFlagRequired("log")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, proposed, err := readRules(args[0])
		if err != nil {
			return err
		}
		in := cmd.InOrStdin()
		if log != "-" {
			file, err := os.Open(log)
			if err != nil {
				return err
			}
			defer file.Close()
			in = file
		}
		return withRules(c, func(rules packhorsev1connect.RuleServiceClient) error {
			got, err := rules.Get(cmd.Context(), connect.NewRequest(&packhorsev1.RuleServiceGetRequest{}))
			if err != nil {
				return err
			}
			configured := auth.RuleSetOf(got.Msg.GetConfigured())
			before, err := configured.With(auth.RuleSetOf(got.Msg.GetStored()))
			if err != nil {
				return err
			}
			after, err := configured.With(proposed)
			if err != nil {
				return err
			}
			return tryRules(cmd.Context(), in, cmd.OutOrStdout(), before, after)
		})
	}
	return cmd
}

// loggedPush is a line of a log about changes of refs.
type loggedPush struct {
	Repository, User, Auth string
	Updates                []struct{ Ref, Old, New string }
}

// maxLogLine is the maximum length of a line of a log in bytes. A push can have 100,000 refs.
const maxLogLine = 64 << 20

// tryRules prints the decisions about the changes in a log that differ.
func tryRules(ctx context.Context, in io.Reader, out io.Writer, before, after []auth.Rule) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLogLine)
	changes, counts := 0, map[string]int{}
	for lines.Scan() && ctx.Err() == nil {
		var p loggedPush
		if json.Unmarshal(lines.Bytes(), &p) != nil || len(p.Updates) == 0 || p.User == "" {
			continue
		}
		repo, err := git.ParseRepoPath(p.Repository)
		if err != nil {
			continue
		}
		id := auth.Identity{Name: p.User, By: p.Auth}
		for _, u := range p.Updates {
			changes++
			oldID, _ := git.ParseObjectID(u.Old)
			newID, _ := git.ParseObjectID(u.New)
			kinds := node.RefChangesOf(git.RefName(u.Ref), oldID, newID)
			is, was := auth.Explain(after, id, repo, git.RefName(u.Ref)), auth.Explain(before, id, repo, git.RefName(u.Ref))
			for i, d := range is {
				if kinds&node.RefChangeOf(d.GetOperation()) != 0 && d.GetPermitted() != was[i].GetPermitted() {
					counts[fmt.Sprintf("%s\t%s\t%s\t%s\t%s by %s\t%s by %s", p.User, p.Repository, u.Ref, d.GetOperation(),
						decisionText(was[i]), was[i].GetBy(), decisionText(d), d.GetBy())]++
				}
			}
		}
	}
	table := newTable(out, "TIMES\tUSER\tREPOSITORY\tREF\tCHANGE\tNOW\tTHEN")
	for _, line := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(table, "%d\t%s\n", counts[line], line)
	}
	err := cmp.Or(ctx.Err(), lines.Err(), table.Flush())
	if err == nil {
		_, err = fmt.Fprintf(out, "%d changes of refs in the log, %d decisions would be others\n", changes, len(counts))
	}
	return err
}

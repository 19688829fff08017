package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
	return c.with(func(server *client.Client) error { return answerOf(do(server.Rules())) })
}

func rulesCommand(env Env) *cobra.Command {
	c := &adminClient{target{env: env}, config.RoleGateway, "server"}
	cmd := &cobra.Command{
		Use:   "rules",
		Short: "Show, change and test the rules of a running server",
		Long: `Rules manages the rules of a running serve or gateway: those of its configuration, which come first, and those that
"packhorse rules set" stores. The stored ones are in STATE/tokens, or with auth.shared in the object store.`,
		Example: `  packhorse rules list --root /srv/git
  packhorse rules test alice team/app refs/heads/main --root /srv/git
  packhorse rules try rules.toml --root /srv/git
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
	if err := config.LoadFile(file, &cfg, config.Origins{}); err != nil { // it names the file
		return nil, auth.RuleSet{}, err
	}
	if _, err := cfg.Auth.Rules(); err != nil {
		return nil, auth.RuleSet{}, fmt.Errorf("%s: %w", file, err)
	}
	set := cfg.Auth.RuleSet()
	return set.Message(), set, nil
}

func rulesSet(c *adminClient) *cobra.Command {
	var expected uint64
	var force bool
	cmd := &cobra.Command{
		Use: "set FILE", Short: "Replace the stored rules", Args: exactArgs(1, "one FILE"),
		Long: `Set replaces the stored groups and rules by those of a file, which has the tables [[auth.group]] and [[auth.rule]] as in
the configuration. They apply to the next request. "packhorse rules try" shows before what would change.

Without --force it refuses to replace rules by none, and rules that leave no administrator of the server.`,
		Example: "  packhorse rules set rules.toml --root /srv/git\n" +
			"  packhorse rules set rules.toml --version 7 --root /srv/git",
	}
	cmd.Flags().Uint64Var(&expected, "version", 0,
		"fail unless the stored rules have this `VERSION` (default the present one)")
	cmd.Flags().BoolVar(&force, "force", false, "replace rules by none, or leave no administrator")
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
				ExpectedVersion: expected, Force: force}))
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
				if err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "dropped what was cached about %s\n", args[0])
				}
				return err
			})
		},
	}
}

func rulesTry(c *adminClient) *cobra.Command {
	cmd := &cobra.Command{
		Use: "try FILE", Short: "Show which past changes of refs other rules would decide otherwise",
		Args: exactArgs(1, "one FILE"),
		Long: `Try compares the stored rules with those of a file. It reads the changes of refs among the events of the server
("packhorse events"), and prints those that would be decided otherwise. Events do not have the kind of the caller's
credential, so that rules for "token:NAME" and the like are not compared.`,
		Example: "  packhorse rules try rules.toml --root /srv/git",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, proposed, err := readRules(args[0])
		if err != nil {
			return err
		}
		return c.with(func(server *client.Client) error {
			got, err := server.Rules().Get(cmd.Context(), connect.NewRequest(&packhorsev1.RuleServiceGetRequest{}))
			if err != nil {
				return answerOf(err)
			}
			t := &rulesTrial{counts: make(map[string]int)}
			configured := auth.RuleSetOf(got.Msg.GetConfigured())
			if t.before, err = configured.With(auth.RuleSetOf(got.Msg.GetStored())); err != nil {
				return err
			}
			if t.after, err = configured.With(proposed); err != nil {
				return err
			}
			if err = t.addEvents(cmd.Context(), server); err != nil {
				return err
			}
			return t.print(cmd.OutOrStdout())
		})
	}
	return cmd
}

// rulesTrial compares two lists of rules.
type rulesTrial struct {
	before, after []auth.Rule
	changes       int
	counts        map[string]int // of the changes that are decided otherwise, by their description
}

// add compares the decisions about a change of a ref.
func (t *rulesTrial) add(id auth.Identity, path string, ref git.RefName, kinds node.RefChange) {
	repo, err := git.ParseRepoPath(path)
	if err != nil || id.Anonymous() {
		return
	}
	t.changes++
	then, now := auth.Explain(t.after, id, repo, ref), auth.Explain(t.before, id, repo, ref)
	for i, d := range then {
		if kinds&node.RefChangeOf(d.GetOperation()) != 0 && d.GetPermitted() != now[i].GetPermitted() {
			t.counts[fmt.Sprintf("%s\t%s\t%s\t%s\t%s by %s\t%s by %s", id.Name, path, ref, d.GetOperation(),
				decisionText(now[i]), now[i].GetBy(), decisionText(d), d.GetBy())]++
		}
	}
}

func (t *rulesTrial) addEvents(ctx context.Context, server *client.Client) error {
	kinds := map[string]node.RefChange{"created": node.RefCreate, "fast-forward": node.RefWrite, "deleted": node.RefDelete}
	for at := ""; ; {
		r, err := server.Events().List(ctx, connect.NewRequest(&packhorsev1.EventServiceListRequest{After: at, Limit: 1000}))
		if connect.CodeOf(err) == connect.CodeUnimplemented {
			return usage(errors.New("this server has no events: run the command at a gateway of nodes with events"))
		}
		if err != nil {
			return answerOf(err)
		}
		for _, e := range r.Msg.GetEvents() {
			for _, ref := range e.GetRefs() {
				kind := cmp.Or(kinds[ref.GetKind()], node.RefForce)
				if kind == node.RefWrite && strings.HasPrefix(ref.GetName(), "refs/tags/") {
					kind = node.RefForce
				}
				t.add(auth.Identity{Name: e.GetActor()}, e.GetRepository(), git.RefName(ref.GetName()), kind)
			}
		}
		if r.Msg.GetNext() == at {
			return nil
		}
		at = r.Msg.GetNext()
	}
}

func (t *rulesTrial) print(out io.Writer) error {
	table := newTable(out, "TIMES\tUSER\tREPOSITORY\tREF\tCHANGE\tNOW\tTHEN")
	for _, line := range slices.Sorted(maps.Keys(t.counts)) {
		fmt.Fprintf(table, "%d\t%s\n", t.counts[line], line)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "compared %d changes of refs; different decisions: %d\n", t.changes, len(t.counts))
	return err
}

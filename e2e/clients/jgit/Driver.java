import static org.eclipse.jgit.lib.SubmoduleConfig.FetchRecurseSubmodulesMode.NO;

import java.io.File;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.eclipse.jgit.api.CloneCommand;
import org.eclipse.jgit.api.Git;
import org.eclipse.jgit.lib.NullProgressMonitor;
import org.eclipse.jgit.lib.Ref;
import org.eclipse.jgit.transport.FetchConnection;
import org.eclipse.jgit.transport.FilterSpec;
import org.eclipse.jgit.transport.PushResult;
import org.eclipse.jgit.transport.RefSpec;
import org.eclipse.jgit.transport.RemoteRefUpdate;
import org.eclipse.jgit.transport.TagOpt;
import org.eclipse.jgit.transport.Transport;
import org.eclipse.jgit.transport.URIish;
import org.eclipse.jgit.transport.UsernamePasswordCredentialsProvider;
import org.eclipse.jgit.util.FileUtils;
import org.eclipse.jgit.util.SystemReader;

/** Drives JGit in protocol version $PROTOCOL. See clients_test.go in e2e for the operations. */
public class Driver {
  public static void main(String[] args) throws Exception {
    var config = SystemReader.getInstance().getUserConfig();
    config.setString("protocol", null, "version", System.getenv().getOrDefault("PROTOCOL", "2"));
    switch (args[0]) {
      case "version" -> System.out.println(Git.class.getPackage().getImplementationVersion());
      case "ls-remote" -> {
        // In a repository, since without one it does not read which version is wanted.
        File scratch = Files.createTempDirectory("jgit").toFile();
        try (Git git = Git.init().setBare(true).setDirectory(scratch).call()) {
          for (Ref ref : git.lsRemote().setRemote(args[1]).call()) {
            System.out.println(ref.getObjectId().name() + "\t" + ref.getName());
          }
        }
        FileUtils.delete(scratch, FileUtils.RECURSIVE);
      }
      case "clone" -> clone(args, TagOpt.FETCH_TAGS).setCloneAllBranches(true).call().close();
      case "branch" -> single(args, TagOpt.NO_TAGS, args[3]).call().close();
      case "shallow" -> deep(single(args, TagOpt.NO_TAGS, "main"), args[3]).call().close();
      case "fetch" -> {
        try (Git git = Git.open(new File(args[1]))) {
          git.fetch().setRecurseSubmodules(NO).setTagOpt(TagOpt.AUTO_FOLLOW).call();
        }
      }
      case "deepen" -> {
        try (Git git = Git.open(new File(args[1]))) {
          deep(git.fetch(), args[2]).call();
        }
      }
      case "tags" -> {
        try (Git git = Git.open(new File(args[1]))) {
          git.fetch().setRecurseSubmodules(NO).setTagOpt(TagOpt.FETCH_TAGS).call();
        }
      }
      case "push" -> {
        // Over SSH its settings are in ~/.ssh/config.
        try (Git git = Git.open(new File(args[1]))) {
          String ref = "refs/heads/" + args[3];
          for (PushResult result : git.push().setRemote(args[2]).setRefSpecs(new RefSpec(ref + ":" + ref)).call()) {
            for (RemoteRefUpdate update : result.getRemoteUpdates()) {
              if (update.getStatus() != RemoteRefUpdate.Status.OK) {
                System.err.println(update + " " + result.getMessages());
                System.exit(1);
              }
            }
          }
        }
      }
      case "partial" -> partial(args);
      case "replicate" -> replicate(args);
      default -> System.exit(2);
    }
  }

  /**
   * Pushes all refs that match specifications, and removes others: replicate DIR URL USER PASSWORD SPEC... It lists refs by
   * a fetch connection and then pushes those that differ, like Gerrit's replication plugin with mirror = true.
   */
  static void replicate(String[] args) throws Exception {
    try (Git git = Git.open(new File(args[1])); Transport transport = Transport.open(git.getRepository(), new URIish(args[2]))) {
      transport.setCredentialsProvider(new UsernamePasswordCredentialsProvider(args[3], args[4]));
      Map<String, Ref> remote;
      try (FetchConnection connection = transport.openFetch()) {
        remote = connection.getRefsMap();
      }
      List<RemoteRefUpdate> updates = new ArrayList<>();
      for (String text : Arrays.copyOfRange(args, 5, args.length)) {
        RefSpec spec = new RefSpec(text);
        for (Ref ref : git.getRepository().getRefDatabase().getRefs()) {
          if (spec.matchSource(ref.getName())) {
            Ref there = remote.get(ref.getName());
            if (there == null || !there.getObjectId().equals(ref.getObjectId())) {
              updates.add(new RemoteRefUpdate(git.getRepository(), ref, ref.getName(), spec.isForceUpdate(), null, null));
            }
          }
        }
        for (Ref ref : remote.values()) {
          if (spec.matchDestination(ref.getName()) && git.getRepository().exactRef(ref.getName()) == null) {
            updates.add(new RemoteRefUpdate(git.getRepository(), (Ref) null, ref.getName(), spec.isForceUpdate(), null, null));
          }
        }
      }
      if (updates.isEmpty()) {
        return;
      }
      for (RemoteRefUpdate update : transport.push(NullProgressMonitor.INSTANCE, updates).getRemoteUpdates()) {
        System.out.println(update.getStatus() + " " + update.getRemoteName());
        switch (update.getStatus()) {
          case OK, UP_TO_DATE, NON_EXISTING -> {}
          default -> throw new Exception(update.toString());
        }
      }
    }
  }

  static CloneCommand clone(String[] args, TagOpt tags) {
    return Git.cloneRepository().setURI(args[1]).setDirectory(new File(args[2])).setNoCheckout(true).setTagOption(tags);
  }

  static CloneCommand single(String[] args, TagOpt tags, String branch) {
    return clone(args, tags).setBranch(branch).setBranchesToClone(List.of("refs/heads/" + branch));
  }

  /** Sets the depth, which the commands have since JGit 6.3. */
  static <T> T deep(T command, String depth) throws Exception {
    command.getClass().getMethod("setDepth", int.class).invoke(command, Integer.parseInt(depth));
    return command;
  }

  /** The clone command has no filter; the transport below it has. */
  static void partial(String[] args) throws Exception {
    try (Git git = Git.init().setDirectory(new File(args[2])).call(); Transport transport = Transport.open(git.getRepository(), args[1])) {
      transport.setFilterSpec(FilterSpec.fromFilterLine("blob:none"));
      transport.setTagOpt(TagOpt.FETCH_TAGS);
      transport.fetch(NullProgressMonitor.INSTANCE, List.of(new RefSpec("+refs/heads/*:refs/remotes/origin/*")));
    }
  }
}

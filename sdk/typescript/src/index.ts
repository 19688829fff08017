import { type Client, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { ArchiveService } from "./gen/packhorse/v1/archive_pb.js";
import { CommitService } from "./gen/packhorse/v1/commit_pb.js";
import { DiffService } from "./gen/packhorse/v1/diff_pb.js";
import { EventService } from "./gen/packhorse/v1/event_pb.js";
import { WebhookService } from "./gen/packhorse/v1/webhook_pb.js";
import { type Fault, FaultSchema } from "./gen/packhorse/v1/fault_pb.js";
import { HistoryService } from "./gen/packhorse/v1/history_pb.js";
import { MergeService } from "./gen/packhorse/v1/merge_pb.js";
import { ObjectService } from "./gen/packhorse/v1/object_pb.js";
import { RefService } from "./gen/packhorse/v1/ref_pb.js";
import { RepositoryService } from "./gen/packhorse/v1/repository_pb.js";

export * from "./gen/packhorse/v1/archive_pb.js";
export * from "./gen/packhorse/v1/commit_pb.js";
export * from "./gen/packhorse/v1/diff_pb.js";
export * from "./gen/packhorse/v1/event_pb.js";
export * from "./gen/packhorse/v1/fault_pb.js";
export * from "./gen/packhorse/v1/history_pb.js";
export * from "./gen/packhorse/v1/merge_pb.js";
export * from "./gen/packhorse/v1/object_pb.js";
export * from "./gen/packhorse/v1/ref_pb.js";
export * from "./gen/packhorse/v1/repository_pb.js";
export * from "./gen/packhorse/v1/version_pb.js";
export * from "./gen/packhorse/v1/webhook_pb.js";

/** Node has a client for each service of proto/packhorse/v1, which documents the calls. */
export class Node {
  readonly repositories: Client<typeof RepositoryService>;
  readonly refs: Client<typeof RefService>;
  readonly objects: Client<typeof ObjectService>;
  readonly commits: Client<typeof CommitService>;
  readonly merges: Client<typeof MergeService>;
  readonly diffs: Client<typeof DiffService>;
  readonly history: Client<typeof HistoryService>;
  readonly archives: Client<typeof ArchiveService>;
  readonly events: Client<typeof EventService>;
  readonly webhooks: Client<typeof WebhookService>;
  readonly #session: Http2SessionManager;

  /**
   * Makes a client of the node at a URL ("http://HOST:PORT" or "https://HOST:PORT"). It does not connect before the first
   * call. The secret is the content of the node's secret_file. Without TLS it is readable on the network.
   */
  constructor(url: string, secret = "") {
    this.#session = new Http2SessionManager(url);
    const transport = createGrpcTransport({
      baseUrl: url,
      sessionManager: this.#session,
      interceptors: [
        (next) => (request) => {
          if (secret) request.header.set("Authorization", "Bearer " + secret);
          return next(request);
        },
      ],
    });
    this.repositories = createClient(RepositoryService, transport);
    this.refs = createClient(RefService, transport);
    this.objects = createClient(ObjectService, transport);
    this.commits = createClient(CommitService, transport);
    this.merges = createClient(MergeService, transport);
    this.diffs = createClient(DiffService, transport);
    this.history = createClient(HistoryService, transport);
    this.events = createClient(EventService, transport);
    this.webhooks = createClient(WebhookService, transport);
    this.archives = createClient(ArchiveService, transport);
  }

  /** Ends the connection and running calls. */
  close(): void {
    this.#session.abort();
  }
}

/** Returns the Fault of an error of a call: kind, field and mismatches. Undefined if it has none. */
export function faultOf(error: unknown): Fault | undefined {
  return ConnectError.from(error).findDetails(FaultSchema)[0];
}

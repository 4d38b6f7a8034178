-- The tables of a ledger as the first gateways that had one made them; {seq} is a number that only ever grows.
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE calls (seq {seq}, "n" BIGINT NOT NULL, "part" BIGINT NOT NULL, "at_us" BIGINT NOT NULL,
  "request_id" TEXT NOT NULL, "kind" TEXT NOT NULL, "key" TEXT NOT NULL, "tenant" TEXT NOT NULL, "team" TEXT
  NOT NULL, "tags" TEXT NOT NULL, "user" TEXT NOT NULL, "session" TEXT NOT NULL, "agent" TEXT NOT NULL,
  "route" TEXT NOT NULL, "operation" TEXT NOT NULL, "backend" TEXT NOT NULL, "model" TEXT NOT NULL, "served"
  TEXT NOT NULL, "stream" BOOLEAN NOT NULL, "cache" TEXT NOT NULL, "end" TEXT NOT NULL, "status" BIGINT NOT
  NULL, "error" TEXT NOT NULL, "fault" TEXT NOT NULL, "input_tokens" BIGINT NOT NULL, "cached_tokens" BIGINT
  NOT NULL, "written_5m_tokens" BIGINT NOT NULL, "written_1h_tokens" BIGINT NOT NULL, "output_tokens" BIGINT
  NOT NULL, "reasoning_tokens" BIGINT NOT NULL, "audio_tokens" BIGINT NOT NULL, "image_tokens" BIGINT NOT
  NULL, "estimated" BOOLEAN NOT NULL, "cost" BIGINT, "list_cost" BIGINT, "price" TEXT NOT NULL, "saved_exact"
  BIGINT, "saved_joined" BIGINT, "saved_semantic" BIGINT, "saved_prompt" BIGINT, "saved_cheaper" BIGINT,
  "saved_batch" BIGINT, "saved_share" BIGINT, "saved_extra" BIGINT, "ttft_us" BIGINT, "tpot_us" BIGINT,
  "queue_us" BIGINT, "total_us" BIGINT NOT NULL, "in_slo" BOOLEAN, "worker" BIGINT NOT NULL, "day" BIGINT NOT
  NULL, UNIQUE (worker, n, part));
CREATE INDEX calls_by_time ON calls (at_us);
CREATE TABLE by_day ("day" INTEGER NOT NULL, "tenant" TEXT NOT NULL, "team" TEXT NOT NULL, "key" TEXT NOT
  NULL, "route" TEXT NOT NULL, "operation" TEXT NOT NULL, "backend" TEXT NOT NULL, "model" TEXT NOT NULL,
  "charges" BIGINT NOT NULL, "calls" BIGINT NOT NULL, "errors" BIGINT NOT NULL, "estimated" BIGINT NOT NULL,
  "unknown" BIGINT NOT NULL, "saved_unknown" BIGINT NOT NULL, "input_tokens" BIGINT NOT NULL, "cached_tokens"
  BIGINT NOT NULL, "output_tokens" BIGINT NOT NULL, "cost_micro" BIGINT NOT NULL, "cost_pico" BIGINT NOT NULL,
  "saved_micro" BIGINT NOT NULL, "saved_pico" BIGINT NOT NULL, "written_5m_tokens" BIGINT NOT NULL,
  "written_1h_tokens" BIGINT NOT NULL, "reasoning_tokens" BIGINT NOT NULL, "audio_tokens" BIGINT NOT NULL,
  "image_tokens" BIGINT NOT NULL, "list_cost_micro" BIGINT NOT NULL, "list_cost_pico" BIGINT NOT NULL,
  "saved_exact_micro" BIGINT NOT NULL, "saved_exact_pico" BIGINT NOT NULL, "saved_joined_micro" BIGINT NOT
  NULL, "saved_joined_pico" BIGINT NOT NULL, "saved_semantic_micro" BIGINT NOT NULL, "saved_semantic_pico"
  BIGINT NOT NULL, "saved_prompt_micro" BIGINT NOT NULL, "saved_prompt_pico" BIGINT NOT NULL,
  "saved_cheaper_micro" BIGINT NOT NULL, "saved_cheaper_pico" BIGINT NOT NULL, "saved_batch_micro" BIGINT NOT
  NULL, "saved_batch_pico" BIGINT NOT NULL, "saved_share_micro" BIGINT NOT NULL, "saved_share_pico" BIGINT NOT
  NULL, "saved_extra_micro" BIGINT NOT NULL, "saved_extra_pico" BIGINT NOT NULL, "total_us" BIGINT NOT NULL,
  "ttft_us" BIGINT NOT NULL, "ttft_calls" BIGINT NOT NULL, "slo_calls" BIGINT NOT NULL, "slo_met" BIGINT NOT
  NULL, PRIMARY KEY ("day", "tenant", "team", "key", "route", "operation", "backend", "model"));
CREATE TABLE by_hour ("hour" INTEGER NOT NULL, "tenant" TEXT NOT NULL, "key" TEXT NOT NULL, "route" TEXT NOT
  NULL, "backend" TEXT NOT NULL, "model" TEXT NOT NULL, "charges" BIGINT NOT NULL, "calls" BIGINT NOT NULL,
  "errors" BIGINT NOT NULL, "estimated" BIGINT NOT NULL, "unknown" BIGINT NOT NULL, "saved_unknown" BIGINT NOT
  NULL, "input_tokens" BIGINT NOT NULL, "cached_tokens" BIGINT NOT NULL, "output_tokens" BIGINT NOT NULL,
  "cost_micro" BIGINT NOT NULL, "cost_pico" BIGINT NOT NULL, "saved_micro" BIGINT NOT NULL, "saved_pico"
  BIGINT NOT NULL, PRIMARY KEY ("hour", "tenant", "key", "route", "backend", "model"));
CREATE TABLE by_user ("day" INTEGER NOT NULL, "tenant" TEXT NOT NULL, "user" TEXT NOT NULL, "charges" BIGINT
  NOT NULL, "calls" BIGINT NOT NULL, "errors" BIGINT NOT NULL, "estimated" BIGINT NOT NULL, "unknown" BIGINT
  NOT NULL, "saved_unknown" BIGINT NOT NULL, "input_tokens" BIGINT NOT NULL, "cached_tokens" BIGINT NOT NULL,
  "output_tokens" BIGINT NOT NULL, "cost_micro" BIGINT NOT NULL, "cost_pico" BIGINT NOT NULL, "saved_micro"
  BIGINT NOT NULL, "saved_pico" BIGINT NOT NULL, PRIMARY KEY ("day", "tenant", "user"));
CREATE TABLE by_session ("day" INTEGER NOT NULL, "tenant" TEXT NOT NULL, "session" TEXT NOT NULL, "charges"
  BIGINT NOT NULL, "calls" BIGINT NOT NULL, "errors" BIGINT NOT NULL, "estimated" BIGINT NOT NULL, "unknown"
  BIGINT NOT NULL, "saved_unknown" BIGINT NOT NULL, "input_tokens" BIGINT NOT NULL, "cached_tokens" BIGINT NOT
  NULL, "output_tokens" BIGINT NOT NULL, "cost_micro" BIGINT NOT NULL, "cost_pico" BIGINT NOT NULL,
  "saved_micro" BIGINT NOT NULL, "saved_pico" BIGINT NOT NULL, PRIMARY KEY ("day", "tenant", "session"));
CREATE TABLE marks (name TEXT PRIMARY KEY, value BIGINT NOT NULL);
INSERT INTO marks VALUES ('rolled_up', 0);
